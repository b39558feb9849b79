"""Wrong ids, sizes and types raise; nothing is read or written outside the arrays."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

Make = Callable[..., Any]
ROWS = np.zeros(10 * 32, np.uint8)  # ten rows of 8 f32
X = np.ones(8, np.float32)


def ids_of(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def dot(kernels: Any, **changes: Any) -> None:
    arguments: dict[str, Any] = {
        "rows": ROWS,
        "row_stride": 32,
        "row_offset": 0,
        "dtype": "f32",
        "ids": ids_of(0, 9),
        "x": X,
        "out": np.zeros(2, np.float32),
    }
    kernels.dot_rows(**(arguments | changes))


def weigh(kernels: Any, **changes: Any) -> None:
    arguments: dict[str, Any] = {
        "rows": ROWS,
        "row_stride": 32,
        "row_offset": 0,
        "dtype": "f32",
        "ids": ids_of(0, 9),
        "weights": np.ones(2, np.float32),
        "block_ends": ids_of(2),
        "out": np.zeros(8, np.float32),
    }
    kernels.weighted_sum_rows(**(arguments | changes))


def dot_each(kernels: Any, **changes: Any) -> None:
    arguments: dict[str, Any] = {
        "rows": ROWS,
        "row_stride": 32,
        "row_offset": 0,
        "dtype": "f32",
        "ids": ids_of(0, 9),
        "vector_ends": ids_of(1, 1, 2),
        "x": np.ones(24, np.float32),
        "out": np.zeros(2, np.float32),
    }
    kernels.dot_rows_each(**(arguments | changes))


def weigh_each(kernels: Any, **changes: Any) -> None:
    arguments: dict[str, Any] = {
        "rows": ROWS,
        "row_stride": 32,
        "row_offset": 0,
        "dtype": "f32",
        "ids": ids_of(0, 9),
        "weights": np.ones(2, np.float32),
        "vector_ends": ids_of(1, 1, 2),
        "block_ends": ids_of(1, 2),
        "out": np.zeros(24, np.float32),
    }
    kernels.weighted_sum_rows_each(**(arguments | changes))


def dot_all(kernels: Any, **changes: Any) -> None:
    arguments: dict[str, Any] = {
        "rows": ROWS,
        "row_stride": 32,
        "row_offset": 0,
        "dtype": "f32",
        "ids": ids_of(0, 9),
        "x": np.ones((3, 8), np.float32),
        "out": np.zeros((3, 2), np.float32),
    }
    kernels.dot_rows_all(**(arguments | changes))


def weigh_all(kernels: Any, **changes: Any) -> None:
    arguments: dict[str, Any] = {
        "rows": ROWS,
        "row_stride": 32,
        "row_offset": 0,
        "dtype": "f32",
        "ids": ids_of(0, 9),
        "weights": np.ones((3, 2), np.float32),
        "block_ends": ids_of(2),
        "out": np.zeros((3, 8), np.float32),
    }
    kernels.weighted_sum_rows_all(**(arguments | changes))


WRONG_ROWS = {
    "id past the end": ({"ids": ids_of(0, 10)}, IndexError),
    "id negative": ({"ids": ids_of(0, -1)}, IndexError),
    "id the smallest": ({"ids": ids_of(0, -(1 << 31))}, IndexError),
    "id the largest": ({"ids": ids_of(0, (1 << 31) - 1)}, IndexError),
    "offset that runs over": ({"row_offset": 1}, IndexError),
    "offset far out": ({"row_offset": (1 << 63) - 1}, IndexError),
    "offset negative": ({"row_offset": -1}, ValueError),
    "stride that runs over": ({"row_stride": 33}, IndexError),
    "stride that wraps around": (
        {"row_stride": (1 << 63) - 1, "ids": ids_of(0, 3)},
        IndexError,
    ),
    "stride zero": ({"row_stride": 0}, ValueError),
    "stride negative": ({"row_stride": -32}, ValueError),
    "rows cut short": ({"rows": ROWS[:319]}, IndexError),
    "no rows": ({"rows": ROWS[:0]}, IndexError),
    "dtype unknown": ({"dtype": "f64"}, ValueError),
    "dtype of larger rows": ({"dtype": "int8"}, IndexError),
}


@pytest.mark.parametrize("call", [dot, weigh, dot_each, weigh_each, dot_all, weigh_all])
@pytest.mark.parametrize("case", WRONG_ROWS)
def test_wrong_rows_raise(make_kernels: Make, call: Callable[..., None], case: str) -> None:
    changes, error = WRONG_ROWS[case]
    kernels = make_kernels(2)
    call(kernels)
    with pytest.raises(error):
        call(kernels, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"out": np.zeros(3, np.float32)},
        {"out": np.zeros(1, np.float32)},
        {"x": np.ones(0, np.float32)},
    ],
    ids=["out too long", "out too short", "no columns"],
)
def test_wrong_sizes_of_dot_raise(make_kernels: Make, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        dot(make_kernels(), **changes)


WRONG_VECTORS = {
    "no vectors": {"vector_ends": ids_of()},
    "vectors end early": {"vector_ends": ids_of(1, 1, 1)},
    "vectors end late": {"vector_ends": ids_of(1, 2, 3)},
    "vectors fall": {"vector_ends": ids_of(2, 1, 2)},
    "vectors before the first": {"vector_ends": ids_of(-1, 1, 2)},
}


@pytest.mark.parametrize("call", [dot_each, weigh_each])
@pytest.mark.parametrize("case", WRONG_VECTORS)
def test_wrong_vectors_raise(make_kernels: Make, call: Callable[..., None], case: str) -> None:
    with pytest.raises(ValueError, match="vector"):
        call(make_kernels(), **WRONG_VECTORS[case])


@pytest.mark.parametrize(
    "changes",
    [
        {"out": np.zeros(3, np.float32)},
        {"out": np.zeros(1, np.float32)},
        {"x": np.ones(23, np.float32)},
        {"x": np.ones(0, np.float32)},
    ],
    ids=["out too long", "out too short", "a vector cut short", "no columns"],
)
def test_wrong_sizes_of_each_dot_raise(make_kernels: Make, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        dot_each(make_kernels(), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": np.ones(1, np.float32)},
        {"weights": np.ones(3, np.float32)},
        {"block_ends": ids_of(2)},
        {"block_ends": ids_of(1)},
        {"block_ends": ids_of(1, 3)},
        {"block_ends": ids_of()},
        {"block_ends": ids_of(2, 1, 2)},
        {"out": np.zeros(23, np.float32)},
        {"out": np.zeros(0, np.float32)},
    ],
    ids=[
        "weights too few",
        "weights too many",
        "a block of two vectors",
        "blocks end early",
        "blocks end late",
        "no blocks",
        "blocks fall",
        "a vector cut short",
        "no columns",
    ],
)
def test_wrong_sizes_of_each_sum_raise(make_kernels: Make, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        weigh_each(make_kernels(), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": np.ones(1, np.float32)},
        {"weights": np.ones(3, np.float32)},
        {"block_ends": ids_of(1)},
        {"block_ends": ids_of(3)},
        {"block_ends": ids_of()},
        {"block_ends": ids_of(2, 1, 2)},
        {"block_ends": ids_of(-1, 2)},
        {"out": np.zeros(0, np.float32)},
    ],
    ids=[
        "weights too few",
        "weights too many",
        "blocks end early",
        "blocks end late",
        "no blocks",
        "blocks fall",
        "block negative",
        "no columns",
    ],
)
def test_wrong_sizes_of_weighted_sum_raise(make_kernels: Make, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        weigh(make_kernels(), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"out": np.zeros((2, 2), np.float32)},
        {"out": np.zeros((3, 3), np.float32)},
        {"x": np.ones((3, 0), np.float32)},
        {"x": np.ones((2, 8), np.float32)},
    ],
)
def test_wrong_sizes_of_dots_of_all_raise(make_kernels: Make, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"x has|out has|columns"):
        dot_all(make_kernels(), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": np.ones((2, 2), np.float32)},
        {"weights": np.ones((3, 3), np.float32)},
        {"out": np.zeros((4, 8), np.float32)},
        {"out": np.zeros((3, 0), np.float32)},
        {"block_ends": ids_of(1)},
        {"block_ends": ids_of(2, 1)},
        {"block_ends": ids_of()},
    ],
)
def test_wrong_sizes_of_sums_of_all_raise(make_kernels: Make, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"weights has|columns|block_ends must"):
        weigh_all(make_kernels(), **changes)


def test_tiles_are_of_whole_rows_and_only_where_there_are_some(make_kernels: Make) -> None:
    with pytest.raises(ValueError, match="rows has 320 bytes, which is no whole number of rows"):
        make_kernels().tile_matrix(ROWS.copy(), "f32", 9)
    with pytest.raises(ValueError, match="columns"):
        make_kernels().tile_matrix(ROWS.copy(), "f32", 0)
    with pytest.raises(ValueError, match="no tiles of"):
        make_kernels().matmul(ROWS, "f32", X[None], np.zeros((1, 10), np.float32), True)


@pytest.mark.parametrize("count", [9, 11])
def test_matmul_wants_exactly_its_rows(make_kernels: Make, count: int) -> None:
    with pytest.raises(ValueError, match=f"rows has 320 bytes; {count} rows of 32"):
        make_kernels().matmul(
            ROWS, "f32", np.ones((3, 8), np.float32), np.zeros((3, count), np.float32)
        )
    with pytest.raises(ValueError, match="one a vector"):
        make_kernels().matmul(
            ROWS, "f32", np.ones((2, 8), np.float32), np.zeros((3, 10), np.float32)
        )
    with pytest.raises(TypeError):
        make_kernels().matmul(ROWS, "f32", X, np.zeros((1, 10), np.float32))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"begins": np.array([0, -1])}, IndexError),
        ({"begins": np.array([0, 65])}, IndexError),
        ({"begins": np.array([0, 2**62])}, IndexError),
        ({"begins": np.array([0])}, ValueError),
        ({"x": np.ones((3, 8), np.float32)}, ValueError),
        ({"x": np.ones((1, 9), np.float32)}, IndexError),
        ({"out": np.zeros((3, 8), np.float32)}, ValueError),
        ({"out": np.zeros((2, 9), np.float32)}, IndexError),
    ],
)
def test_matrices_outside_the_bytes_raise(
    make_kernels: Make, changes: dict[str, Any], error: type[Exception]
) -> None:
    """Two of eight rows of eight f32, the last of which ends where the bytes do."""
    arguments: dict[str, Any] = {
        "data": ROWS,
        "begins": np.array([0, 64]),
        "dtype": "f32",
        "x": X[None],
        "out": np.zeros((2, 8), np.float32),
    }
    make_kernels().matvec_each(**arguments)
    with pytest.raises(error):
        make_kernels().matvec_each(**(arguments | changes))


@pytest.mark.parametrize("count", [9, 11])
def test_matvec_wants_exactly_its_rows(make_kernels: Make, count: int) -> None:
    with pytest.raises(ValueError, match="320 bytes"):
        make_kernels().matvec(ROWS, "f32", X, np.zeros(count, np.float32))


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": ROWS.view(np.float32)},
        {"rows": ROWS[::2]},
        {"rows": ROWS.reshape(10, 32)},
        {"ids": np.array([0, 9], np.int64)},
        {"ids": [0, 9]},
        {"x": X.astype(np.float64)},
        {"x": X.astype(">f4")},
        {"out": np.zeros(2, np.float64)},
        {"out": np.zeros(4, np.float32)[::2]},
        {"out": None},
    ],
    ids=[
        "rows of f32",
        "rows strided",
        "rows 2-d",
        "ids int64",
        "ids list",
        "x f64",
        "x big-endian",
        "out f64",
        "out strided",
        "out None",
    ],
)
def test_arrays_of_a_wrong_kind_are_not_converted(
    make_kernels: Make, changes: dict[str, Any]
) -> None:
    with pytest.raises((TypeError, BufferError)):
        dot(make_kernels(), **changes)


def test_results_are_not_written_into_read_only_arrays(make_kernels: Make) -> None:
    out = np.zeros(2, np.float32)
    out.flags.writeable = False
    with pytest.raises((TypeError, BufferError)):
        dot(make_kernels(), out=out)
    assert not out.any()


def test_read_only_rows_are_welcome(make_kernels: Make) -> None:
    rows = np.frombuffer(np.ones(80, np.float32).tobytes(), np.uint8)
    out = np.zeros(2, np.float32)
    dot(make_kernels(), rows=rows, out=out)
    assert (out == 8).all()


def test_nothing_beside_the_results_is_written(make_kernels: Make) -> None:
    around = np.full(8 + 2, 7, np.float32)
    weigh(make_kernels(3), out=around[1:9])
    assert (around == 7).all()  # the rows are zero: what they add is nothing
    dots = np.full(4, 7, np.float32)
    dot(make_kernels(3), out=dots[1:3])
    assert dots.tolist() == [7, 0, 0, 7]


@pytest.mark.parametrize("threads", [0, -1, 100_000])
def test_wrong_numbers_of_threads_raise(core: ModuleType, threads: int) -> None:
    with pytest.raises(ValueError, match="threads"):
        core.Kernels(threads)


def test_an_unknown_isa_names_those_there_are(core: ModuleType) -> None:
    with pytest.raises(ValueError, match=f"available: .*{core.available_isas()[0]}"):
        core.Kernels(1, "mmx")


def test_closed_kernels_refuse(make_kernels: Make) -> None:
    kernels = make_kernels(2)
    kernels.close()
    kernels.close()
    with pytest.raises(ValueError, match="closed"):
        dot(kernels)
