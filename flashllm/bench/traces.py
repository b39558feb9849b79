"""Recorded traces of active sets: which bundles each token of a text used, in every layer.

A trace is what cache policies are replayed on. It is recorded from a forward pass in which every
token computes only what the selector names, so nothing of it depends on slots or on a window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flashllm.errors import UsageError
from flashllm.flash.store import Store
from flashllm.flash.window import Ids
from flashllm.loading import choose_selector, open_decoder

FORMAT = 1
BUNDLES_MAX = 1 << 24
TOKENS_MAX = 1 << 22
LAYERS_MAX = 1 << 12


@dataclass(frozen=True, slots=True)
class Trace:
    """Active sets of texts that follow each other."""

    model: str
    """Name of the model's directory."""
    select: str
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

    def part(self, first: int, last: int) -> Trace:
        """The tokens from `first` to before `last` alone."""
        sets = tuple(layer[first:last] for layer in self.sets)
        return Trace(self.model, self.select, self.n_bundles, self.stride, sets)


def record(
    directory: Path,
    passages: Sequence[Sequence[int]],
    select: str | None = None,
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
    with open_decoder(directory, chosen) as decoder:
        sets: list[list[Ids]] = [[] for _ in range(decoder.spec.n_layers)]
        mode = "oracle" if chosen == "oracle" else "selected"
        for ids in passages:
            for _ in decoder.logits_blocks(
                ids, mode, chosen=lambda layer, named: sets[layer].extend(named)
            ):
                pass
            if on_passage is not None:
                on_passage(len(ids))
    frozen = tuple(tuple(layer) for layer in sets)
    return Trace(Path(directory).resolve().name, chosen, n_bundles, stride, frozen)
