"""Memory of a torch device, as arrays of bytes that only its kernels look into."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashllm import core
from flashllm.errors import DeviceFailed, OutOfMemory
from flashllm.units import format_bytes

_NO_MEMORY = (
    "out of memory",
    "allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
)
"""What errors of torch say, beside its own class for them, where a library of the device's maker
found no memory for itself."""


class DeviceBytes:
    """Bytes on a device. They go where an array of rows goes; only kernels look into them."""

    __slots__ = ("_memory", "tensor")

    def __init__(self, tensor: Tensor, memory: TorchMemory) -> None:
        """`tensor` is [nbytes] of uint8."""
        self.tensor = tensor
        self._memory = memory

    def __len__(self) -> int:
        return len(self.tensor)

    @property
    def nbytes(self) -> int:
        """How many there are."""
        return len(self.tensor)

    def __getitem__(self, part: slice) -> DeviceBytes:
        """A range of them, the same memory."""
        return DeviceBytes(self.tensor[part], self._memory)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.uint8]:
        """A copy in DRAM."""
        return self._memory.download(self.tensor)


class TorchMemory:
    """Memory of one torch device, and the copies from and to it. As `core.device_memory` says."""

    def __init__(self, device: torch.device, limit_bytes: int) -> None:
        """At most `limit_bytes` are to be taken, as the plan says."""
        self.device = device
        self.limit_bytes = limit_bytes
        self.bytes_allocated = 0
        """Bytes of what stays there: matrices, keys and values, slots."""
        self.bytes_up = 0
        """Bytes copied to the device."""
        self.bytes_down = 0
        """Bytes copied from the device."""
        self.pin_problem = ""
        """Why a buffer is not locked in DRAM; "" where all are, or where nothing gains by it."""
        self._pinned: set[int] = set()
        """Addresses of the buffers that are locked."""

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Bytes there, zero; `OutOfMemory` where there are not so many."""
        with self.errors(f"allocating {format_bytes(nbytes)}"):
            tensor = torch.zeros(nbytes, dtype=torch.uint8, device=self.device)
        self.bytes_allocated += nbytes
        return self.bytes_of(tensor)

    def place(self, raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A copy of bytes there."""
        there = self.allocate(len(raw))
        with self.errors("copying weights"):
            tensor_of(there).copy_(torch.from_numpy(raw))
        self.bytes_up += len(raw)
        return there

    def bytes_of(self, tensor: Tensor) -> NDArray[np.uint8]:
        """A tensor [nbytes] there, as rows."""
        # Who computes with rows passes them on to kernels, and needs no other type for these.
        return cast("NDArray[np.uint8]", DeviceBytes(tensor, self))

    def upload(self, array: NDArray[Any]) -> Tensor:
        """A copy of an array there, of which nobody waits for the end."""
        return self.copied(torch.from_numpy(np.ascontiguousarray(array)))

    def copied(self, tensor: Tensor) -> Tensor:
        """A copy there of a tensor in DRAM, of which nobody waits for the end.

        What is locked in DRAM must not change until `synchronize`; all else may, at once.
        """
        self.bytes_up += tensor.nbytes
        return tensor.to(self.device, non_blocking=self.copies_beside)

    @property
    def copies_beside(self) -> bool:
        """Whether copies to the device run beside the rest.

        CUDA stages what is not locked in DRAM before the call returns; nobody else promises that.
        """
        return self.device.type == "cuda"

    def download(self, tensor: Tensor) -> NDArray[Any]:
        """A copy of a tensor in DRAM, once all that it depends on has ended."""
        self.bytes_down += tensor.nbytes
        found: NDArray[Any] = tensor.detach().cpu().numpy()
        return found.copy() if self.device.type == "cpu" else found

    def pin(self, buffer: core.Buffer) -> None:
        """Lock a buffer in DRAM, as far as the system allows; with CUDA alone."""
        if self.device.type != "cuda":
            return
        # The reader's buffers are page-aligned for direct reads; torch's own pinned memory need
        # not be.
        with torch.cuda.device(self.device):
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            status = runtime.cudaHostRegister(buffer.address, buffer.nbytes, 0)
            if int(status) == 0:
                self._pinned.add(buffer.address)
                return
            words = runtime.cudaGetErrorString(status)
            self.pin_problem = f"cudaHostRegister of {format_bytes(buffer.nbytes)}: {words}"
            # CUDA keeps the error, and the next kernel would be blamed for it.
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=self.device)

    def unpin(self, buffer: core.Buffer) -> None:
        """Undo `pin`."""
        if buffer.address in self._pinned:
            self._pinned.remove(buffer.address)
            with torch.cuda.device(self.device):
                runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
                runtime.cudaHostUnregister(buffer.address)

    def report(self) -> dict[str, Any]:
        """What lies there, and what was copied.

        `bytes_reserved_peak` is the most that torch held of the device for this process since this
        memory was opened: with what products take at once, and what is left between blocks; None
        where torch does not say.
        """
        peak = None
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_reserved(self.device)
        return {
            "bytes_allocated": self.bytes_allocated,
            "bytes_reserved_peak": peak,
            "bytes_to_device": self.bytes_up,
            "bytes_from_device": self.bytes_down,
            "pin_problem": self.pin_problem or None,
        }

    def close(self) -> None:
        """Give back to the device what nothing uses any longer."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        elif self.device.type == "mps":
            torch.mps.empty_cache()

    def synchronize(self) -> None:
        """Wait until all copies have ended."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    @contextlib.contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """`OutOfMemory` where the device has no more memory, `DeviceFailed` where it broke."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise self._full(doing) from error
        except torch.AcceleratorError as error:
            words = str(error).partition("\n")[0]
            if any(said in words for said in _NO_MEMORY):
                raise self._full(doing) from error
            raise DeviceFailed(
                f"{self.device} failed ({doing}): {words}. It is lost to this process; start again,"
                " with --device none if it goes on"
            ) from error
        except RuntimeError as error:
            if any(said in str(error) for said in _NO_MEMORY):
                raise self._full(doing) from error
            raise

    def _full(self, doing: str) -> OutOfMemory:
        return OutOfMemory(
            f"{self.device} has no more memory ({doing}; {format_bytes(self.bytes_allocated)}"
            f" are placed there). Give less, with --device-memory, than"
            f" {format_bytes(self.limit_bytes)}; what does not fit stays in DRAM"
        )


def is_there(rows: object) -> bool:
    """Whether bytes are on a device."""
    return isinstance(rows, DeviceBytes)


def tensor_of(rows: object) -> Tensor:
    """The tensor [nbytes] of bytes that are on a device."""
    assert isinstance(rows, DeviceBytes)
    return rows.tensor
