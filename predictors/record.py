"""Activations on disk: a group of layers is recorded in one pass over the text.

A group has as many layers as fit on the free disk; the next group takes another pass. An
interrupted pass continues after the last context whose rows are all known to be on disk.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from flashllm.errors import NotEnoughSpace
from flashllm.large_arrays import Floats
from flashllm.progress import Progress
from flashllm.system.resumable_file import write_error, write_file

from .recorded_rows import (
    F16_MAX,
    MEMORY_ROWS_BYTES,
    LayerData,
    RowShape,
    RowsInMemory,
    RowsOnDisk,
    pack_rows,
)
from .resumable import FREE_BYTES_MARGIN, FREE_SHARE_MAX, WorkDirectory

if TYPE_CHECKING:
    from typing import Self

# An interruption without warning, such as a loss of power, loses at most this much.
CHECKPOINT_TOKENS = 8_192

Tap = Callable[[int, Floats, Floats], None]
"""Called with layer, input [tokens, d_model], margin [tokens, d_ffn], chunk by chunk."""


class TappedDecoder(Protocol):
    """The part of a decoder that is needed here: computes a new context densely, with a tap."""

    def prefill(self, ids: Sequence[int], *, tap: Tap) -> object:
        """Run `ids` through every layer in order."""


@dataclass(frozen=True, slots=True)
class Text:
    """Contexts to record, and how many tokens at their start are for training."""

    contexts: Sequence[Sequence[int]]
    train_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens of all contexts."""
        return self.tokens_of(len(self.contexts))

    def tokens_of(self, contexts: int) -> int:
        """Tokens of the first `contexts` contexts."""
        return sum(map(len, self.contexts[:contexts]))


def next_group(
    work: WorkDirectory, layers: Sequence[int], shape: RowShape, tokens: int
) -> list[int]:
    """The untrained `layers` to record next: the first ones that fit on the free disk.

    A recording that was begun continues if the rest of it still fits; else it is dropped.
    """
    layer_bytes = tokens * shape.row_bytes
    begun = [layer for layer in _State.of(work, shape).layers if layer in layers]
    if begun:
        sizes = [_size(work, layer) for layer in begun]
        if sum(max(0, layer_bytes - size) for size in sizes) <= work.free_bytes():
            return begun
    work.drop_recording()
    free_bytes = work.free_bytes()
    count = free_bytes // layer_bytes
    if count < 1:
        raise NotEnoughSpace(
            f"{work.path}: recording {tokens:,} tokens takes {layer_bytes:,} bytes a layer and "
            f"{free_bytes:,} can be used ({FREE_SHARE_MAX:.0%} of what is free, less "
            f"{FREE_BYTES_MARGIN >> 20} MiB); free some and run the same command again, or give a "
            "shorter calibration text"
        )
    return list(layers[:count])


class GroupRecording:
    """The rows of some layers, written through `tap` context by context, then read."""

    def __init__(
        self, work: WorkDirectory, layers: Sequence[int], shape: RowShape, text: Text
    ) -> None:
        self.layers = list(layers)
        self._work = work
        self._shape = shape
        self._text = text
        self._state = _State.of(work, shape).kept_of(self.layers)
        self._tokens_done = text.tokens_of(self.contexts_done)
        recorded_bytes = self._tokens_done * shape.row_bytes
        if any(_size(work, layer) < recorded_bytes for layer in self.layers):
            self._state, self._tokens_done = _State.fresh(self.layers, shape), 0
        self._checkpoint_tokens = self._tokens_done
        self._positions = dict.fromkeys(self.layers, self._tokens_done)
        self._sums = {layer: np.zeros(shape.d_ffn) for layer in self.layers}
        self._files: dict[int, int] = {}

    @property
    def contexts_done(self) -> int:
        """Contexts recorded wholly."""
        return self._state.contexts

    def __enter__(self) -> Self:
        try:
            for layer in self.layers:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self._files[layer] = os.open(self._work.rows_path(layer), flags, 0o644)
        except OSError as error:
            self.__exit__()
            raise write_error(self._work.path, error) from error
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._files.values():
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._files.clear()
        if not self.contexts_done:
            with contextlib.suppress(OSError):
                self._work.drop_recording()  # no context is whole, so nothing could be continued

    def record(self, decoder: TappedDecoder, progress: Progress) -> None:
        """Records all contexts that are not recorded yet; keeps what is done, however it ends."""
        token_bytes = len(self.layers) * self._shape.row_bytes
        try:
            for ids in self._text.contexts[self.contexts_done :]:
                decoder.prefill(ids, tap=self.tap)
                self._end_context(len(ids))
                progress.advance(len(ids) * token_bytes)
                if self._tokens_done - self._checkpoint_tokens >= CHECKPOINT_TOKENS:
                    self._checkpoint()
        finally:
            self._checkpoint()

    def tap(self, layer: int, ffn_input: Floats, margin: Floats) -> None:
        """The next tokens of a layer of the current context."""
        if layer not in self._files:
            return
        inputs = np.clip(ffn_input, -F16_MAX, F16_MAX).astype(np.float16)
        first = self._positions[layer]
        self._write(layer, first, pack_rows(inputs, margin > 0))
        self._positions[layer] = first + len(inputs)
        training = max(0, self._text.train_tokens - first)
        self._sums[layer] += margin[:training].sum(axis=0, dtype=np.float64)

    def data(self, layer: int) -> contextlib.AbstractContextManager[LayerData]:
        """What was recorded of a layer."""
        return _layer_data(self._work, layer, self._shape, self._text.tokens)

    def mean_margin(self, layer: int) -> torch.Tensor:
        """Mean over the training tokens, [d_ffn]."""
        mean = self._state.sums[self.layers.index(layer)] / self._text.train_tokens
        return torch.from_numpy(mean.astype(np.float32))

    def _end_context(self, tokens: int) -> None:
        self._tokens_done += tokens
        done = all(place == self._tokens_done for place in self._positions.values())
        assert done, "a tap was not called for every token of every layer"
        # Only now, and in one step: an interrupted context is recorded again from its start.
        sums = self._state.sums + np.stack([self._sums[layer] for layer in self.layers])
        self._state = _State(self.layers, self.contexts_done + 1, sums)
        for layer in self.layers:
            self._sums[layer][:] = 0

    def _checkpoint(self) -> None:
        try:
            for descriptor in self._files.values():
                os.fsync(descriptor)
        except OSError as error:
            raise write_error(self._work.path, error) from error
        write_file(self._work.group_path, self._state.to_bytes())
        self._checkpoint_tokens = self._tokens_done

    def _write(self, layer: int, first: int, rows: NDArray[np.uint8]) -> None:
        view, offset = rows.data.cast("B"), first * self._shape.row_bytes
        try:
            while view:
                count = os.pwrite(self._files[layer], view, offset)
                view, offset = view[count:], offset + count
        except OSError as error:
            raise write_error(self._work.rows_path(layer), error) from error


@dataclass(frozen=True, slots=True)
class _State:
    """Progress of a group's recording: whole contexts, and sums of their margins."""

    layers: list[int]
    contexts: int
    sums: NDArray[np.float64]  # [layers, d_ffn]

    @classmethod
    def of(cls, work: WorkDirectory, shape: RowShape) -> _State:
        """The stored state; an empty one if that is absent or damaged."""
        try:
            found = load(work.group_path.read_bytes())
            layers = [int(layer) for layer in found["layers"]]
            state = cls(layers, int(found["contexts"][0]), found["sums"])
            if state.sums.shape == (len(layers), shape.d_ffn):
                return state
        except (OSError, SafetensorError, KeyError, IndexError, ValueError):
            pass
        return cls.fresh([], shape)

    @classmethod
    def fresh(cls, layers: list[int], shape: RowShape) -> _State:
        """Nothing recorded."""
        return cls(layers, 0, np.zeros((len(layers), shape.d_ffn)))

    def kept_of(self, layers: list[int]) -> _State:
        """The state of some of its layers; an empty one if other layers are asked for."""
        if not set(layers) <= set(self.layers):
            return _State(layers, 0, np.zeros((len(layers), self.sums.shape[1])))
        return _State(layers, self.contexts, self.sums[[self.layers.index(n) for n in layers]])

    def to_bytes(self) -> bytes:
        """The content of the group's file."""
        numbers = {"layers": np.array(self.layers), "contexts": np.array([self.contexts])}
        return save({**numbers, "sums": np.ascontiguousarray(self.sums)})


@contextlib.contextmanager
def _layer_data(
    work: WorkDirectory, layer: int, shape: RowShape, tokens: int
) -> Iterator[LayerData]:
    rows = RowsOnDisk(work.rows_path(layer), shape.row_bytes)
    try:
        if tokens * shape.row_bytes <= MEMORY_ROWS_BYTES:
            everything = rows.take(np.arange(tokens))
            yield LayerData(RowsInMemory(everything), shape, range(tokens))
        else:
            yield LayerData(rows, shape, range(tokens))
    finally:
        rows.close()


def _size(work: WorkDirectory, layer: int) -> int:
    try:
        return work.rows_path(layer).stat().st_size
    except OSError:
        return 0
