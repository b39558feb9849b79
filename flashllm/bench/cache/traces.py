"""Recorded traces of active sets: which bundles each token of a text used, in every layer.

Cache policies are replayed on traces. A trace is recorded from a forward pass in which every token
computes only what the selector selects, so it does not depend on slots or on a window.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flashllm.arrays import Ids
from flashllm.engine.loading import open_decoder
from flashllm.errors import CannotCreate, UsageError
from flashllm.flash.store import Store
from flashllm.model.schedule import Mode
from flashllm.options import SELECTORS, Select
from flashllm.planning.model_facts import choose_selector
from flashllm.system.atomic_file import replacing
from flashllm.weight_cache.blocks import smallest_slots

FORMAT = 1
FILE_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True)
class Trace:
    """Active sets of several texts, one after the other."""

    model: str
    """Name of the model's directory."""
    select: Select
    n_bundles: int
    """Bundles of a layer."""
    stride: int
    """Bytes of a bundle on flash."""
    sets: tuple[tuple[Ids, ...], ...]
    """Ascending ids by layer and token."""

    @property
    def tokens(self) -> int:
        """Tokens recorded."""
        return len(self.sets[0])

    @property
    def used(self) -> float:
        """Bundles of all layers that a token uses on average."""
        return sum(len(ids) for layer in self.sets for ids in layer) / self.tokens

    @property
    def least_slots(self) -> int:
        """The fewest slots that a layer can work with: for experts, those of a token."""
        if self.select == "router":
            return max(len(ids) for layer in self.sets for ids in layer)
        return smallest_slots(self.n_bundles)

    def part(self, first: int, last: int) -> Trace:
        """The trace of tokens `first` to `last` - 1."""
        sets = tuple(layer[first:last] for layer in self.sets)
        return Trace(self.model, self.select, self.n_bundles, self.stride, sets)


def record(
    directory: Path,
    passages: Sequence[Sequence[int]],
    select: Select | None = None,
    on_passage: Callable[[int], None] | None = None,
) -> Trace:
    """The active sets of all tokens of `passages`; each begins a context of its own.

    `on_passage` is called with the tokens of each when it is done. `UsageError` for a model that
    needs every neuron.
    """
    with Store(directory) as store:
        chosen = choose_selector(store, select)
        n_bundles, stride = store.header.bundles_per_layer, store.header.stride
    if chosen == "all":
        raise UsageError(
            f"{directory}: every token uses every neuron, so there is nothing that a policy could"
            " decide"
        )
    with open_decoder(directory, select=chosen) as decoder:
        sets: list[list[Ids]] = [[] for _ in range(decoder.spec.bundled_layers)]
        mode: Mode = "oracle" if chosen == "oracle" else "selected"
        for ids in passages:
            for _ in decoder.logits_blocks(
                ids, mode, chosen=lambda layer, named: sets[layer].extend(named)
            ):
                pass
            if on_passage is not None:
                on_passage(len(ids))
    frozen = tuple(tuple(layer) for layer in sets)
    return Trace(Path(directory).resolve().name, chosen, n_bundles, stride, frozen)


def save(trace: Trace, path: Path) -> None:
    """Write a trace, whole or not at all; `CannotCreate` where it cannot be written."""
    lengths = np.array([[len(ids) for ids in layer] for layer in trace.sets], np.int32)
    try:
        with replacing(path) as part, part.open("wb") as file:
            np.savez_compressed(
                file,
                format=FORMAT,
                model=trace.model,
                select=trace.select,
                n_bundles=trace.n_bundles,
                stride=trace.stride,
                lengths=lengths,
                ids=np.concatenate([ids for layer in trace.sets for ids in layer]),
            )
    except OSError as error:
        raise CannotCreate(
            f"{path}: the trace cannot be written ({error.strerror}); give another --trace FILE"
        ) from error


def load(path: Path) -> Trace:
    """The trace in a file that `save` wrote; `UsageError` where it is none."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ValueError("too large")
        # numpy would leave a file open that is no archive.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            values = {name: stored[name] for name in stored.files}
        if int(values["format"]) != FORMAT:
            raise ValueError(f"format {values['format']}, and {FORMAT} is known")
        return _checked(values)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(
            f"{path}: is no trace ({error}); remove it, and the same command records a new one"
        ) from error


def _checked(values: dict[str, np.ndarray]) -> Trace:
    lengths, ids = values["lengths"], values["ids"]
    n_bundles, stride = int(values["n_bundles"]), int(values["stride"])
    if lengths.ndim != 2 or not lengths.size or lengths.dtype != np.int32:
        raise ValueError("no lengths by layer and token")
    if ids.ndim != 1 or ids.dtype != np.int32 or n_bundles < 1 or stride < 1:
        raise ValueError("no ids")
    if (lengths < 0).any() or lengths.sum(dtype=np.int64) != len(ids):
        raise ValueError("lengths and ids differ")
    select = next((name for name in SELECTORS if name == str(values["select"])), None)
    if select is None:
        raise ValueError(f"selector {values['select']}")
    if len(ids) and not 0 <= ids.min() <= ids.max() < n_bundles:
        raise ValueError("ids beyond the layer")
    pieces = np.split(ids, np.cumsum(lengths.ravel(), dtype=np.int64)[:-1])
    if any((np.diff(piece) <= 0).any() for piece in pieces):
        raise ValueError("ids out of order")
    layers, tokens = lengths.shape
    sets = tuple(tuple(pieces[i * tokens : (i + 1) * tokens]) for i in range(layers))
    return Trace(str(values["model"]), select, n_bundles, stride, sets)
