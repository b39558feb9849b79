"""`.bin` files of torch: read with weights_only, never otherwise, and without keeping them mapped.

torch maps the file; the pages that were touched count as ours until the mapping goes. So it is
dropped and made anew after every `MAPPED_BYTES_MAX`, which costs milliseconds.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from flashllm.errors import NotACheckpoint, TensorMismatch

from .checkpoint import SourceTensor
from .files import RangeFile, source_file

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
            self._tensors = [self._describe(key, value) for key, value in self._open().items()]
        except BaseException:
            self.close()
            raise

    def tensors(self) -> list[SourceTensor]:
        """The entries of the dictionary."""
        return self._tensors

    def read_into(self, buffer: memoryview, name: str, start: int) -> None:
        """A copy out of the mapping, which is renewed now and then."""
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
        """Nothing: where its bytes lie is torch's business."""

    def forget(self, name: str) -> None:
        """Nothing, as with `expect`."""

    def check_unchanged(self) -> None:
        """By size and time of the last change."""
        self._file.check_unchanged()

    def close(self) -> None:
        """Drop the mapping and close the file."""
        self._mapped = None
        self._file.close()

    def _open(self) -> dict[str, Any]:
        """The mapped tensors."""
        if self._mapped is None:
            self._mapped = _load(self._path)
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
        return SourceTensor(key, dtype, tuple(value.shape), self._name, nbytes)


def _load(path: Path) -> dict[str, Any]:
    """The dictionary in the file, mapped; `NotACheckpoint` for whatever torch refuses."""
    import torch

    try:
        values = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as problem:  # torch raises many kinds, all of them about the file
        reason = str(problem).strip().splitlines() or [type(problem).__name__]
        raise NotACheckpoint(
            f"{path}: torch refuses to read it as plain tensors: {reason[0][:300]}. It is damaged, "
            "holds more than tensors, or is in the format of torch before 1.6"
        ) from problem
    if not isinstance(values, dict):
        raise NotACheckpoint(f"{path}: expected a dictionary, found {type(values).__name__}")
    return values
