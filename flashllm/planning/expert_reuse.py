"""How soon experts are used again, where nothing was recorded of the model itself. Pure.

Fitted by `python -m benchmarks.expert_reuse` to the routing of Qwen3-30B-A3B (48 layers, 128
tokens, the first 1 to 6 of 128 experts by their weight) and gpt-oss-120b (36 layers, 64 tokens, the
first 1 and 2 of 128) that BigMoeOnEdge published. Fitted to the first alone, it is 1 % from the
second in the mean: what counts is the share of its experts that a token goes through, not the
model.
"""

from __future__ import annotations

import math
from statistics import NormalDist

REUSE_COEFFICIENTS = (
    -0.2391, 0.0931, -0.4588, 0.0655, -0.0497, 0.0100, 0.2388, -0.0223, -0.0088,
)  # fmt: skip
"""Of the features of `reuse_features`."""
EXPERTS_RECORDED = 128
SHARE_RECORDED = 6 / EXPERTS_RECORDED
"""The largest share of its experts that a recorded token goes through."""
BEYOND_RECORDED = 2.0
"""So many times larger shares may be, for the law to be trusted; more are taken for these."""
EARLY_LAYERS = 3.0
"""The first layers return to fewer of their experts; by so many layers that wears off e-fold."""
LAYER_SPREAD = 0.12
"""How single layers differ from the law: the standard deviation of ln of the growth, by the law."""


def reuse_features(window: float, share: float, layer: int) -> tuple[float, ...]:
    """What ln of the growth is linear in: a cubic in ln of the window, through 0 at 1 token.

    Its slope and its bend depend on ln of the share of the experts that a token uses, and on how
    early the layer is.
    """
    tokens, used, early = math.log(window), math.log(share), math.exp(-layer / EARLY_LAYERS)
    bent = (part * factor for factor in (1.0, used, used**2, early) for part in (tokens, tokens**2))
    return (*bent, tokens**3)


def reuse_growth(window: float, per_token: int, n_experts: int, layer: int) -> float:
    """How many times as many experts of a layer `window` tokens in a row use as one does.

    Layers differ as recorded ones do; which of them return to more experts is not known.
    """
    # Where experts are fewer than any that were recorded, nothing says that they return sooner.
    beyond = BEYOND_RECORDED if n_experts >= EXPERTS_RECORDED else 1.0
    share = min(per_token / n_experts, SHARE_RECORDED * beyond)
    features = reuse_features(window, share, layer)
    growth = sum(c * f for c, f in zip(REUSE_COEFFICIENTS, features, strict=True))
    return math.exp(growth * (1 + LAYER_SPREAD * NormalDist().inv_cdf(_place(layer + 1))))


def _place(number: int) -> float:
    """A number between 0 and 1 for each number, evenly whatever their count (van der Corput)."""
    place, width = 0.0, 1.0
    while number:
        width /= 2
        place += width * (number & 1)
        number >>= 1
    return place
