"""The residual stream that all shapes have in common: variances, and what may be added to them."""

from __future__ import annotations

import math

from flashllm.spec import ModelSpec

from .activity import SLOW_SHARE

FAST_DEVIATION = math.sqrt(1 - SLOW_SHARE)
"""Of the embedding of tokens; with what decays over tokens the variance is 1."""
LAYERS_SHARE = 0.1
"""Variance that attention, and as much that the feed-forward layers, add to that 1 in the end.

So little that what is aimed at holds in all layers alike.
"""
LOGIT_DEVIATION = 2.0


def layer_gain(spec: ModelSpec) -> float:
    """Standard deviation of what half a layer adds."""
    return math.sqrt(LAYERS_SHARE / spec.n_layers)


def head_scale(embed_dim: int) -> float:
    """What a head that is the embedding of tokens must be given, in standard deviations."""
    return LOGIT_DEVIATION / (FAST_DEVIATION * math.sqrt(embed_dim))
