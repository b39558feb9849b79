"""`.bin` files of torch: read with weights_only, never otherwise, and without keeping them mapped.

torch maps the file; the pages that were touched count as ours until the mapping goes. So it is
dropped and made again after every `MAPPED_BYTES_MAX`, which costs milliseconds.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flashllm.errors import NotACheckpoint, TensorMismatch

from .files import RangeFile, source_file
from .tensor import SourceTensor

MAPPED_BYTES_MAX = 128 << 20


class PickledShard:
    """One `.bin` file: a dictionary of dense tensors, nothing else."""

    def __init__(self, directory: Path, name: str) -> None:
        self._path = source_file(directory, name)
        self._name = name
        self._file = RangeFile(self._path)
        self._mapped: dict[str, Any] | None = None
        self._touched_bytes = 0
        self._renewing = threading.Lock()
        try:
            described = [self._describe(key, value) for key, value in self._open().items()]
            self._tensors = self._placed(described)
        except BaseException:
            self.close()
            raise

    def tensors(self) -> list[SourceTensor]:
        """The entries of the dictionary."""
        return self._tensors

    def read_into(self, buffer: memoryview, name: str, start: int) -> None:
        """Copies from the mapping, which is renewed now and then."""
        import torch

        with self._renewing:
            for done in range(0, len(buffer), MAPPED_BYTES_MAX):
                into = buffer[done : done + MAPPED_BYTES_MAX]
                flat = self._open()[name].reshape(-1).view(torch.uint8)
                part = flat[start + done : start + done + len(into)].numpy()
                np.frombuffer(into, dtype=np.uint8)[:] = part
                del flat, part
                self._touched_bytes += len(into)
                if self._touched_bytes >= MAPPED_BYTES_MAX:
                    self._mapped = None

    def expect(self, name: str) -> None:
        """Does nothing: torch maps the file."""

    def check_unchanged(self) -> None:
        """By size and time of the last change."""
        self._file.check_unchanged()

    def close(self) -> None:
        """Drop the mapping and close the file; what was mapped leaves the page cache, too."""
        self._mapped = None
        self._file.forget(0, self._file.size)
        self._file.close()

    def _open(self) -> dict[str, Any]:
        """The mapped tensors."""
        if self._mapped is None:
            self._mapped = _load(self._path, "cpu")
            self._touched_bytes = 0
        return self._mapped

    def _describe(self, key: object, value: object) -> SourceTensor:
        """The record of one entry; an error for anything but a plain dense tensor."""
        import torch

        where = f"{self._path}: {str(key)[:200]}"
        if not isinstance(key, str) or not isinstance(value, torch.Tensor):
            raise NotACheckpoint(f"{where}: expected a tensor, found {type(value).__name__}")
        if value.layout != torch.strided or not value.is_contiguous() or value.device.type != "cpu":
            raise TensorMismatch(f"{where}: not a dense, contiguous tensor; save it again as one")
        names = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
        dtype = names.get(value.dtype, str(value.dtype).removeprefix("torch."))
        nbytes = value.numel() * value.element_size()
        return SourceTensor(key, dtype, tuple(value.shape), self._name, 0, nbytes)

    def _placed(self, tensors: list[SourceTensor]) -> list[SourceTensor]:
        """The same with their offsets in the file, if torch tells them."""
        placed = []
        # Without data: only then does torch keep where a storage begins.
        values = _load(self._path, "meta")
        for tensor in tensors:
            value = values[tensor.name]
            start = getattr(value.untyped_storage(), "_checkpoint_offset", None)
            inside = value.storage_offset() * value.element_size()
            placed.append(replace(tensor, offset=0 if start is None else start + inside))
        return placed


def _load(path: Path, device: str) -> dict[str, Any]:
    """The dictionary in the file, mapped; `NotACheckpoint` for whatever torch refuses."""
    import torch

    try:
        values = torch.load(path, map_location=device, mmap=True, weights_only=True)
    except Exception as problem:  # torch raises many kinds, all of them about the file
        reason = str(problem).strip().splitlines() or [type(problem).__name__]
        raise NotACheckpoint(
            f"{path}: torch refuses to read it as plain tensors: {reason[0][:300]}. It is damaged, "
            "holds more than tensors, or is in the format of torch before 1.6"
        ) from problem
    if not isinstance(values, dict):
        raise NotACheckpoint(f"{path}: expected a dictionary, found {type(values).__name__}")
    return values
