"""Activations on disk: what every feed-forward layer was given, and which neurons it made active.

One file of inputs (float16) and one of packed bits, layer-major, tokens in the order of the
contexts. Memory is that of one chunk of tokens; the disk holds `Recording.bytes_needed`.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray

from flashllm.errors import CannotCreate, NotEnoughSpace

from .progress import Progress

FREE_BYTES_MARGIN = 64 << 20
F16_MAX = 65504.0
TRAIN_SHARE = 0.8
TUNE_SHARE = 0.1


Tap = Callable[[int, torch.Tensor, torch.Tensor], None]
"""Called with layer, input [tokens, d_model], pre-activation [tokens, d_ffn], chunk by chunk."""


class TappedDecoder(Protocol):
    """What is needed of a decoder: a fresh context, computed densely, with a tap."""

    def prefill(self, ids: Sequence[int], *, tap: Tap) -> object:
        """Run `ids` through every layer in order."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a recording."""

    n_layers: int
    d_model: int
    d_ffn: int
    tokens: int

    @property
    def bits_bytes(self) -> int:
        """Bytes of one token's packed bits in one layer."""
        return (self.d_ffn + 7) // 8

    @property
    def token_bytes(self) -> int:
        """Bytes recorded of one token in one layer."""
        return 2 * self.d_model + self.bits_bytes

    @property
    def bytes_needed(self) -> int:
        """Bytes that the two files take."""
        return self.n_layers * self.tokens * self.token_bytes


@dataclass(frozen=True, slots=True)
class Split:
    """Which tokens train, which decide when to stop and where thresholds lie, which report."""

    train: range
    tune: range
    report: range


def split_contexts(lengths: Sequence[int]) -> Split:
    """Tokens split 80, 10 and 10 % between whole contexts, each part with one at least."""
    assert len(lengths) >= 3, "read_contexts makes more"
    ends = np.cumsum(lengths)
    total = int(ends[-1])
    last_train = _context_at(ends, TRAIN_SHARE * total, 0, len(lengths) - 3)
    last_tune = _context_at(
        ends, (TRAIN_SHARE + TUNE_SHARE) * total, last_train + 1, len(lengths) - 2
    )
    train, tune = int(ends[last_train]), int(ends[last_tune])
    return Split(range(train), range(train, tune), range(tune, total))


def _context_at(ends: NDArray[np.int64], token: float, low: int, high: int) -> int:
    return min(max(int(np.searchsorted(ends, token)), low), high)


class Recording:
    """The recorded activations of a text: written through `tap`, then read layer by layer."""

    def __init__(self, directory: Path, shape: Shape, train_tokens: int) -> None:
        free = shutil.disk_usage(directory).free
        if free < shape.bytes_needed + FREE_BYTES_MARGIN:
            raise NotEnoughSpace(
                f"{directory}: recording {shape.tokens:,} tokens takes "
                f"{shape.bytes_needed:,} bytes and {free:,} are free; "
                "free some, or give a shorter calibration text"
            )
        self.shape = shape
        self._train_tokens = train_tokens
        self._directory = directory
        # Nameless files: whatever ends this process, nothing is left of them.
        self._inputs = _nameless_file(directory)
        self._active = _nameless_file(directory)
        self._written = [0] * shape.n_layers
        self._sums = np.zeros((shape.n_layers, shape.d_ffn))

    def tap(self, layer: int, ffn_input: torch.Tensor, pre_activation: torch.Tensor) -> None:
        """Append the next tokens of a layer."""
        shape, first = self.shape, self._written[layer]
        inputs = ffn_input.float().clamp(-F16_MAX, F16_MAX).half().numpy()
        values = pre_activation.float().numpy()
        active = np.packbits(values > 0, axis=1, bitorder="little")
        assert (inputs.shape[1], values.shape[1]) == (shape.d_model, shape.d_ffn)
        assert first + len(inputs) <= shape.tokens, "more tokens than contexts hold"
        place = layer * shape.tokens + first
        try:
            _put(self._inputs, place * 2 * shape.d_model, inputs)
            _put(self._active, place * shape.bits_bytes, active)
        except OSError as error:
            raise _cannot_write(self._directory, error) from error
        self._written[layer] = first + len(inputs)
        training = max(0, self._train_tokens - first)
        self._sums[layer] += values[:training].sum(axis=0, dtype=np.float64)

    def finish(self) -> None:
        """Hand everything to the system; reading starts after this."""
        assert all(written == self.shape.tokens for written in self._written), "not all tapped"
        try:
            self._inputs.flush()
            self._active.flush()
        except OSError as error:
            raise _cannot_write(self._directory, error) from error

    def close(self) -> None:
        """Give the space back."""
        for file in (self._inputs, self._active):
            with contextlib.suppress(OSError):  # of a full disk, told before
                file.close()

    def inputs(self, layer: int) -> NDArray[np.float16]:
        """Feed-forward inputs of a layer, [tokens, d_model], mapped from disk."""
        shape = self.shape
        return np.memmap(
            self._inputs,
            np.float16,
            "r",
            layer * shape.tokens * 2 * shape.d_model,
            (shape.tokens, shape.d_model),
        )

    def active(self, layer: int) -> NDArray[np.uint8]:
        """Packed bits of the neurons above zero, [tokens, bits_bytes], mapped from disk."""
        shape = self.shape
        return np.memmap(
            self._active,
            np.uint8,
            "r",
            layer * shape.tokens * shape.bits_bytes,
            (shape.tokens, shape.bits_bytes),
        )

    def mean_pre_activation(self, layer: int) -> torch.Tensor:
        """Mean over the training tokens, [d_ffn]."""
        return torch.from_numpy((self._sums[layer] / self._train_tokens).astype(np.float32))


def record_contexts(
    decoder: TappedDecoder,
    contexts: Sequence[Sequence[int]],
    recording: Recording,
    progress: Progress,
) -> None:
    """Run every context through the decoder and record all of its layers."""
    shape = recording.shape
    progress.start("recording activations", shape.bytes_needed)
    for ids in contexts:
        decoder.prefill(ids, tap=recording.tap)
        progress.advance(len(ids) * shape.n_layers * shape.token_bytes)
    recording.finish()
    progress.finish()


def unpack_active(bits: NDArray[np.uint8], d_ffn: int) -> torch.Tensor:
    """Packed bits as a boolean tensor [tokens, d_ffn]."""
    flags = np.unpackbits(bits, axis=1, count=d_ffn, bitorder="little")
    return torch.from_numpy(flags.view(np.bool_))


def _put(file: BinaryIO, offset: int, values: NDArray[np.generic]) -> None:
    file.seek(offset)
    file.write(np.ascontiguousarray(values).data)


def _nameless_file(directory: Path) -> BinaryIO:
    try:
        return cast("BinaryIO", tempfile.TemporaryFile(dir=directory))
    except OSError as error:
        raise _cannot_write(directory, error) from error


def _cannot_write(directory: Path, error: OSError) -> CannotCreate:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NotEnoughSpace(
            f"{directory}: the disk filled up while recording activations; free some, or give a "
            "shorter calibration text"
        )
    return CannotCreate(f"{directory}: cannot record activations here: {error.strerror}")
