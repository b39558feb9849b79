"""Finds a device by its name, and checks that it computes what it should."""

from __future__ import annotations

import numpy as np
import torch

from flashllm import core
from flashllm.device.kernels import TorchKernels
from flashllm.device.memory import TorchMemory
from flashllm.dtypes import row_bytes
from flashllm.errors import UsageError
from flashllm.units import format_bytes

CPU = "cpu-torch"
"""Torch on the CPU in the stead of a device: the same code, copies included."""
_FREE_SHARE = 0.9
_COLUMNS, _ROWS, _VECTORS = 256, 64, 16
_TOLERANCES = {"f32": 1e-5, "f16": 1e-5, "bf16": 1e-5}
"""Of the largest product. Factors that a device rounds to 10 bits, as TF32 does, miss it."""
_TOLERANCE_OF_GROUPS = 5e-3
"""The core rounds vectors to 14 bits where weights are in groups."""


def find_device(name: str) -> torch.device:
    """The device of that name; `UsageError`, which says what there is, where there is none."""
    if name == CPU:
        return torch.device("cpu")
    kind, _, number = name.partition(":")
    if kind == "cuda":
        _check_cuda(name, number)
    elif kind == "mps":
        if not torch.backends.mps.is_available():
            raise _absent(name, "torch finds no GPU of Apple's here")
    else:
        raise _absent(name, "it is none that is known")
    return torch.device(name)


def free_bytes(name: str, device: torch.device) -> int:
    """What may be taken of a device where nobody says: most of what is free there."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what models of this process have left is free
        return int(torch.cuda.mem_get_info(device)[0] * _FREE_SHARE)
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() * _FREE_SHARE)
    raise UsageError(f"--device {name}: say with --device-memory how much may be taken, like 1GiB")


def open_memory(device: torch.device, limit_bytes: int) -> TorchMemory:
    """The device's memory, with what its driver takes of DRAM; `UsageError` if it does not work."""
    try:
        torch.zeros(1, device=device)
    except RuntimeError as error:
        raise UsageError(f"{device} cannot be used: {str(error).splitlines()[0]}") from error
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what nothing uses any longer does not count
        torch.cuda.reset_peak_memory_stats(device)
    return TorchMemory(device, limit_bytes)


def check_products(kernels: TorchKernels, dtypes: set[str]) -> None:
    """`UsageError` unless products in these encodings work, and are about the core's."""
    check_precision(kernels.memory.device)
    random = np.random.default_rng(0)
    values = random.standard_normal(_ROWS * _COLUMNS).astype(np.float32)
    x = random.standard_normal((_VECTORS, _COLUMNS)).astype(np.float32)
    plain = core.Kernels(threads=1)
    for dtype in sorted(dtypes):
        raw = np.empty(_ROWS * row_bytes(dtype, _COLUMNS), np.uint8)
        expected, found = (np.empty((_VECTORS, _ROWS), np.float32) for _ in range(2))
        plain.encode_rows(values, _COLUMNS, dtype, raw)
        plain.matmul(raw, dtype, x, expected)
        device = kernels.memory.device
        advice = "use --device none, or convert the model with another --dtype"
        try:
            there = kernels.memory.upload(raw)
            kernels.matmul(kernels.memory.bytes_of(there), dtype, x, found)
        except (NotImplementedError, RuntimeError, TypeError) as error:
            words = str(error).partition("\n")[0]
            raise UsageError(
                f"{device} cannot multiply weights in {dtype} ({words}); {advice}"
            ) from error
        wrong = float(np.abs(found - expected).max() / np.abs(expected).max())
        if not wrong <= _TOLERANCES.get(dtype, _TOLERANCE_OF_GROUPS):
            raise UsageError(
                f"{device} multiplies weights in {dtype} wrongly: {wrong:.1e} of the largest"
                " product. If TF32 is on, by torch.set_float32_matmul_precision,"
                f" TORCH_ALLOW_TF32_CUBLAS_OVERRIDE or NVIDIA_TF32_OVERRIDE, leave it off; or"
                f" {advice}"
            )
    plain.close()


def check_precision(device: torch.device) -> None:
    """`UsageError` where torch lets CUDA round factors in f32.

    Products with one vector are exact all the same: tokens may show nothing where a prompt does.
    """
    if device.type == "cuda" and torch.backends.cuda.matmul.fp32_precision not in ("ieee", "none"):
        raise UsageError(
            f"{device} would round factors in f32 to 10 bits, since TF32 is on; leave it off, which"
            " is torch.set_float32_matmul_precision('highest'), or use --device none"
        )


def _check_cuda(name: str, number: str) -> None:
    if torch.version.cuda is None and torch.version.hip is None:
        raise _absent(name, "this torch was built without CUDA")
    if not torch.cuda.is_available():
        raise _absent(name, "torch finds no GPU here; check its driver")
    count = torch.cuda.device_count()
    if number and int(number) >= count:
        found = ", ".join(
            f"cuda:{at} ({torch.cuda.get_device_name(at)},"
            f" {format_bytes(torch.cuda.get_device_properties(at).total_memory)})"
            for at in range(count)
        )
        raise UsageError(f"--device {name}: there is no such one; there are {found}")


def _absent(name: str, reason: str) -> UsageError:
    return UsageError(f"--device {name}: {reason}. Without --device everything runs on the CPU")
