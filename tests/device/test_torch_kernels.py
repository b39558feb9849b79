"""Products on each device that torch has here, the CPU too, held against the core's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from flashllm import core
from flashllm.device.kernels import TorchKernels
from flashllm.device.memory import TorchMemory
from flashllm.device.opening import (
    check_precision,
    check_products,
    find_device,
    open_memory,
)
from flashllm.dtypes import DTYPES, row_bytes
from flashllm.errors import DeviceFailed, OutOfMemory, UsageError

TOLERANCE = {"f32": 1e-6, "f16": 1e-6, "bf16": 1e-6, "int8": 2e-3, "int4": 2e-3, "mxfp4": 2e-3}
"""Of the largest product: the core rounds vectors to 14 bits for encodings by groups."""
D, ROWS = 72, 40
RANDOM = np.random.default_rng(5)


@pytest.fixture
def memory(device: str) -> TorchMemory:
    return open_memory(find_device(device), 1 << 30)


@pytest.fixture
def both(memory: TorchMemory) -> Iterator[tuple[core.Kernels, TorchKernels]]:
    """The core's kernels, and those of the device with tiles of three rows."""
    plain, device = core.Kernels(threads=1), TorchKernels(1, memory, 3 * 4 * D)
    yield plain, device
    plain.close()
    device.close()


def floats(*shape: int) -> NDArray[np.float32]:
    return RANDOM.standard_normal(shape).astype(np.float32)


def encoded(kernels: core.Kernels, dtype: str, rows: int, columns: int) -> NDArray[np.uint8]:
    out = np.empty(rows * row_bytes(dtype, columns), np.uint8)
    kernels.encode_rows(floats(rows * columns), columns, dtype, out)
    return out


def assert_near(
    found: NDArray[np.float32], expected: NDArray[np.float32], tolerance: float
) -> None:
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("dtype", DTYPES)
def test_decoded_rows_have_the_cores_bits(
    both: tuple[core.Kernels, TorchKernels], memory: TorchMemory, dtype: str
) -> None:
    plain, device = both
    raw = encoded(plain, dtype, ROWS, D)
    if dtype == "mxfp4":  # every scale, those of subnormal numbers too
        raw.reshape(ROWS, -1)[:, -3:] = np.arange(3 * ROWS).reshape(ROWS, 3) * 2
    there, nbytes = memory.place(raw), row_bytes(dtype, D)
    ids = np.array([3, 0, 39, 7], np.int32)
    expected, found = (np.empty(4 * D, np.float32) for _ in range(2))
    plain.decode_rows(raw, nbytes, 0, dtype, ids, D, expected)
    device.decode_rows(there, nbytes, 0, dtype, ids, D, found)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_the_cores(
    both: tuple[core.Kernels, TorchKernels], memory: TorchMemory, dtype: str
) -> None:
    plain, _ = both
    nbytes = row_bytes(dtype, D)
    stride = 2 * nbytes + 8
    rows = RANDOM.integers(0, 1, ROWS * stride).astype(np.uint8)
    rows.reshape(ROWS, stride)[:, nbytes : 2 * nbytes] = encoded(plain, dtype, ROWS, D).reshape(
        ROWS, nbytes
    )
    matrix = encoded(plain, dtype, ROWS, D)
    x, weights = floats(5, D), floats(5, ROWS)
    ids = np.array([1, 4, 5, 11, 30, 38, 39], np.int32)
    ends = np.array([1, 1, 4, 6, 7], np.int32)
    start = floats(5, D)
    answers = []
    for kernels in both:
        is_device = isinstance(kernels, TorchKernels)
        own, own_matrix = (memory.place(one) if is_device else one for one in (rows, matrix))
        where = own, stride, nbytes, dtype, ids
        shapes = (ROWS, (5, ROWS), 7, (5, 7), 7, (5, 3), (2, 3))
        out = [np.zeros(shape, np.float32) for shape in shapes]
        kernels.matvec(own_matrix, dtype, x[0], out[0])
        kernels.matmul(own_matrix, dtype, x, out[1])
        kernels.dot_rows(*where, x[1], out[2])
        kernels.dot_rows_all(*where, x, out[3])
        kernels.dot_rows_each(*where, ends, x.reshape(-1), out[4])
        begins = np.array([0, 2, 1, 30, 9], np.int64) * nbytes
        kernels.matvec_each(own_matrix, begins, dtype, x, out[5])
        kernels.matvec_each(own_matrix, begins[:2], dtype, x[:1], out[6])
        several = [np.zeros((5, ROWS), np.float32), np.zeros((5, ROWS), np.float32)]
        bias = weights[2]
        kernels.matmul_several([own_matrix] * 2, dtype, [None, bias], x, several)
        out += several
        sums = [start[0].copy(), start.copy(), start.copy()]
        blocks = np.array([3, 4, 7], np.int32)
        kernels.weighted_sum_rows(*where, weights[0, :7].copy(), blocks, sums[0])
        kernels.weighted_sum_rows_all(*where, weights[:, :7].copy(), blocks, sums[1])
        kernels.weighted_sum_rows_each(
            *where, weights[1, :7].copy(), ends, np.array([1, 3, 4, 6, 7], np.int32),
            sums[2].reshape(-1),
        )  # fmt: skip
        answers.append([*out, *sums])
    for expected, found in zip(*answers, strict=True):
        assert_near(found, expected, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8", "int4"])
@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_attention_is_the_cores(
    both: tuple[core.Kernels, TorchKernels],
    memory: TorchMemory,
    dtype: str,
    window: int,
    has_sinks: bool,
) -> None:
    kv_heads, group, columns, capacity, end = 3, 2, 32, 24, 19
    nbytes = kv_heads * capacity * row_bytes(dtype, columns)
    sinks = floats(kv_heads * group) if has_sinks else None
    written = [floats(kv_heads * end * columns) for _ in range(2)]
    query = floats(5 * kv_heads * group * columns)
    answers = []
    for kernels in both:
        is_device = isinstance(kernels, TorchKernels)
        cache = [
            memory.allocate(nbytes) if is_device else np.zeros(nbytes, np.uint8) for _ in range(2)
        ]
        for rows, numbers in zip(cache, written, strict=True):
            # In two parts, as a prompt and a token of an answer do.
            parts = numbers.reshape(kv_heads, end, columns)
            for position, part in ((0, parts[:, :11]), (11, parts[:, 11:])):
                kernels.write_head_rows(
                    np.ascontiguousarray(part).reshape(-1), dtype, columns, kv_heads, position, rows
                )
        out = [np.empty(len(query), np.float32), np.empty(len(query) // 5, np.float32)]
        keys, values = cache
        where = keys, values, dtype, columns, kv_heads
        kernels.attend_many(query, *where, 5, end, window, 0.3, out[0], sinks)
        first = end - window if window else 0
        kernels.attend(query[-len(out[1]) :], *where, first, end, 0.3, out[1], sinks)
        answers.append([*out, *(np.asarray(one).astype(np.float32) for one in cache)])
    tolerance = 1e-5 if dtype in ("f32", "f16") else 3e-3
    for expected, found in zip(answers[0][:2], answers[1][:2], strict=True):
        assert_near(found, expected, tolerance)
    # What is written has the same bytes.
    assert all(np.array_equal(*pair) for pair in zip(answers[0][2:], answers[1][2:], strict=True))


@pytest.mark.parametrize("there", [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("run_bytes", [1, 1 << 20])
def test_rows_are_copied_between_all_places(
    both: tuple[core.Kernels, TorchKernels],
    memory: TorchMemory,
    monkeypatch: pytest.MonkeyPatch,
    there: tuple[bool, bool],
    in_order: bool,
    run_bytes: int,
) -> None:
    plain, device = both
    monkeypatch.setattr("flashllm.device.kernels._RUN_BYTES", run_bytes)
    source = RANDOM.integers(0, 256, 83).astype(np.uint8)  # of rows of 8 bytes, and a rest
    target = RANDOM.integers(0, 256, 64).astype(np.uint8)
    ids = np.array([2, 3, 4] if in_order else [9, 3, 4, 0], np.int32)
    to_ids = np.array([5, 6, 7] if in_order else [1, 7, 2, 3], np.int32)
    expected = target.copy()
    plain.copy_rows(source, ids, 8, expected, to_ids)
    own = [
        memory.place(one) if far else one for one, far in zip((source, target), there, strict=True)
    ]
    device.copy_rows(own[0], ids, 8, own[1], to_ids)
    assert np.array_equal(np.asarray(own[1]), expected)


def test_what_has_no_rows_is_nothing(
    both: tuple[core.Kernels, TorchKernels], memory: TorchMemory
) -> None:
    none = np.zeros(0, np.int32)
    rows, out, sums = memory.allocate(64 * 4), np.zeros(0, np.float32), floats(D)
    before = sums.copy()
    where = rows, 4 * D, 0, "f32", none
    both[1].dot_rows(*where, floats(D), out)
    both[1].weighted_sum_rows(*where, out, none, sums)
    both[1].copy_rows(rows, none, 8, rows, none)
    assert np.array_equal(sums, before)


def test_staging_may_change_once_copies_have_ended(
    both: tuple[core.Kernels, TorchKernels], memory: TorchMemory
) -> None:
    row, rows = 1 << 16, 64
    buffer = core.Buffer(rows * row)
    memory.pin(buffer)
    assert memory.report()["pin_problem"] is None
    there, ids = memory.allocate(2 * rows * row), np.arange(rows, dtype=np.int32)
    for start, number in ((0, 3), (rows, 9)):
        buffer.array()[:] = number
        both[1].copy_rows(buffer.array(), ids, row, there, ids + np.int32(start))
        memory.synchronize()
    buffer.array()[:] = 0
    memory.unpin(buffer)
    found = np.asarray(there).reshape(2, -1)
    assert (found[0] == 3).all()
    assert (found[1] == 9).all()


def test_what_is_not_locked_may_change_at_once(memory: TorchMemory) -> None:
    array = np.full(1 << 22, 7, np.uint8)
    there = memory.upload(array)
    if memory.device.type != "cpu":  # there the copy is the array itself
        array[:] = 1
    assert (memory.download(there) == 7).all()


def test_a_buffer_that_cannot_be_locked_is_a_remark(
    both: tuple[core.Kernels, TorchKernels], memory: TorchMemory
) -> None:
    if memory.device.type != "cuda":
        pytest.skip("buffers are locked for CUDA alone")
    buffer, other = core.Buffer(1 << 16), core.Buffer(1 << 16)
    memory.pin(buffer)
    memory.pin(buffer)  # which CUDA refuses
    problem = memory.report()["pin_problem"]
    assert problem.startswith("cudaHostRegister of 64.0 KiB: ")
    assert "already" in problem
    check_products(both[1], set(DTYPES))  # and nothing else is blamed for it
    memory.pin(other)
    for one in (other, buffer):
        memory.unpin(one)
    memory.pin_problem = ""
    memory.pin(buffer)  # it was unlocked
    assert memory.report()["pin_problem"] is None
    memory.unpin(buffer)


def test_what_a_device_has_no_room_for_is_refused(
    both: tuple[core.Kernels, TorchKernels], memory: TorchMemory
) -> None:
    with pytest.raises(OutOfMemory, match="has no more memory"):
        memory.allocate(1 << 50)
    check_products(both[1], set(DTYPES))


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), OutOfMemory),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), OutOfMemory),
        (torch.AcceleratorError("CUDA error: out of memory\nand more"), OutOfMemory),
        (torch.AcceleratorError("CUDA error: unspecified launch failure\nand more"), DeviceFailed),
        (RuntimeError("shapes cannot be multiplied"), RuntimeError),
    ],
)
def test_errors_of_a_device_are_ours(error: Exception, ours: type[Exception]) -> None:
    memory = TorchMemory(torch.device("cpu"), 1 << 30)
    with pytest.raises(ours) as raised, memory.errors("computing"):
        raise error
    assert type(raised.value) is ours
    assert "and more" not in str(raised.value)


def test_rounded_factors_are_found_out(
    both: tuple[core.Kernels, TorchKernels],
    memory: TorchMemory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_products(both[1], set(DTYPES))
    upload = memory.upload
    monkeypatch.setattr(  # to ten bits, as TF32 does
        memory, "upload", lambda array: upload(
            (array.view(np.int32) + 4096 & -8192).view(np.float32)
            if array.dtype == np.float32 else array
        )
    )  # fmt: skip
    with pytest.raises(UsageError, match=r"multiplies weights in f16 wrongly: .*If TF32 is on"):
        check_products(both[1], {"f16"})


def test_factors_that_torch_lets_cuda_round_are_refused() -> None:
    cuda = torch.device("cuda")  # which need not be there
    check_precision(cuda)
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(UsageError, match=r"cuda would round .* TF32 is on"):
            check_precision(cuda)
        check_precision(torch.device("cpu"))
    finally:
        torch.set_float32_matmul_precision("highest")
