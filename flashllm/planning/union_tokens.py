"""Up to how many tokens a chunk of a prompt reads the neurons that it needs instead of layers."""

from __future__ import annotations

from collections.abc import Sequence

from flashllm.options import Select
from flashllm.planning.activation_stats import Activity
from flashllm.spec import ModelSpec

_NEEDED_TOKENS = 64
"""The largest chunk that may read the neurons it needs instead of layers."""
_NEEDED_TOKENS_UNKNOWN = 2
"""The same where nothing says what tokens use."""
_NEEDED_TOKENS_OF_EXPERTS = 32
"""The same of experts, which are read one by one at the rate of reads in order: a larger chunk
needs most of a layer, of which the next blocks are read while one is computed."""


def union_tokens_of(
    spec: ModelSpec, activity: Activity | None, select: Select, scattered_share: float
) -> int:
    """As many tokens as take no longer to read here and there than the layers take in order."""
    if select == "router":
        return _NEEDED_TOKENS_OF_EXPERTS
    if select not in ("gate", "predicted"):
        return 0
    if activity is None:
        return _NEEDED_TOKENS_UNKNOWN
    tokens, layers = _NEEDED_TOKENS, range(spec.bundled_layers)
    most = spec.bundled_layers * spec.bundles_per_layer * scattered_share
    while tokens > 1 and sum(activity.aggregate(layer, tokens) for layer in layers) > most:
        tokens //= 2
    return tokens


def warm_union_tokens_of(
    spec: ModelSpec,
    activity: Activity | None,
    union_tokens: int,
    slots: Sequence[int],
    scattered_share: float,
) -> int:
    """The same where slots are full: of what tokens need, and of the layers, less is missing.

    As many of the last tokens' neurons as have room are taken to be there.
    """
    bundles, layers = spec.bundles_per_layer, range(spec.bundled_layers)
    missing = sum(bundles - count for count in slots)
    if activity is None or spec.experts is not None or not union_tokens or not missing:
        return union_tokens
    longest = activity.windows[-1]
    held = [activity.tokens_held(layer, slots[layer], longest) for layer in layers]

    def needed(tokens: int) -> float:
        # Beyond the longest window that was counted, the growth is that of its last tokens.
        begun = [min(window, float(longest - tokens)) for window in held]
        return sum(
            activity.aggregate(layer, begun[layer] + tokens)
            - activity.aggregate(layer, begun[layer])
            for layer in layers
        )

    tokens = min(_NEEDED_TOKENS, longest // 2)
    while tokens > union_tokens and needed(tokens) > missing * scattered_share:
        tokens //= 2
    return max(tokens, union_tokens)
