"""Which tensors a stage of a pipeline needs, and how it calls them: its layers count from 0."""

from __future__ import annotations

import re
from collections.abc import Collection

from flashllm.flash.tensor_table import EMBEDDING, POSITIONS, PROJECT_IN

_LAYER = re.compile(r"layers\.(\d+)\.(.*)", re.DOTALL)
_OF_EMBEDDING = (POSITIONS, PROJECT_IN)


def own_names(
    names: Collection[str], layers: range, n_layers: int, *, tied_head: bool
) -> dict[str, str]:
    """Name in the file -> name within the stage, of a model of `n_layers`; in the file's order.

    The embedding is of the stage with the first layer; norm and head are of that with the last.
    """
    is_first, is_last = layers.start == 0, layers.stop == n_layers
    found = {}
    for name in names:
        match = _LAYER.fullmatch(name)
        if match is not None:
            if int(match[1]) in layers:
                found[name] = f"layers.{int(match[1]) - layers.start}.{match[2]}"
        elif name == EMBEDDING:
            if is_first or (is_last and tied_head):
                found[name] = name
        elif is_first if name in _OF_EMBEDDING else is_last:
            found[name] = name
    return found
