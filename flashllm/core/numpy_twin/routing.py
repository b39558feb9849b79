"""The twin of the native core's choice of experts, in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flashllm.core.numpy_twin.arguments import require_array
from flashllm.core.numpy_twin.token_rows import sigmoid

_Floats = NDArray[np.float32]


@np.errstate(invalid="ignore", over="ignore")  # damaged weights give damaged logits
def expert_weights(
    logits: _Floats,
    choice_bias: _Floats | None,
    per_token: int,
    sigmoid: bool,
    groups: int,
    groups_kept: int,
    renormalise: bool,
    sum_offset: float,
    weight_scale: float,
    weights: _Floats,
) -> None:
    """Weights [tokens, experts] that logits give: zero where an expert is not chosen."""
    _check(logits, choice_bias, per_token, groups, groups_kept, weights)
    scores = _scores(logits, sigmoid)
    by = logits if choice_bias is None else scores + choice_bias
    if groups > 1:
        by = _in_best_groups(scores if choice_bias is None else by, groups, groups_kept)
    chosen = _largest(by, per_token)
    kept = np.take_along_axis(scores, chosen, axis=1)
    if renormalise:
        kept = kept / (kept.sum(axis=1, keepdims=True) + np.float32(sum_offset))
    weights[:] = 0
    np.put_along_axis(weights, chosen, kept * np.float32(weight_scale), axis=1)


def _check(
    logits: _Floats,
    choice_bias: _Floats | None,
    per_token: int,
    groups: int,
    groups_kept: int,
    weights: _Floats,
) -> None:
    require_array("logits", logits, np.float32, dimensions=2)
    require_array("weights", weights, np.float32, writable=True, dimensions=2)
    experts = logits.shape[1]
    of = f", for {list(logits.shape)} logits"
    if weights.shape != logits.shape:
        raise ValueError(f"weights is {list(weights.shape)}{of}")
    if choice_bias is not None:
        require_array("choice_bias", choice_bias, np.float32)
        if len(choice_bias) not in (0, experts):
            raise ValueError(f"choice_bias has {len(choice_bias)} values{of}")
    if groups < 1 or experts % groups:
        raise ValueError(f"{groups} groups{of}")
    if not 1 <= groups_kept <= groups:
        raise ValueError(f"{groups_kept} of {groups} groups kept{of}")
    if not 1 <= per_token <= experts:
        raise ValueError(f"{per_token} experts a token{of}")


def _in_best_groups(by: _Floats, groups: int, groups_kept: int) -> _Floats:
    """What experts are chosen by, minus infinity outside the groups that a token keeps."""
    grouped = by.reshape(len(by), groups, -1)
    best = np.sort(grouped, axis=2)[:, :, -2:].sum(axis=2)
    kept = _largest(best, groups_kept)[:, :, None]
    within = np.full(grouped.shape, -np.inf, dtype=np.float32)
    np.put_along_axis(within, kept, np.take_along_axis(grouped, kept, axis=1), axis=1)
    return within.reshape(by.shape)


def _largest(values: _Floats, count: int) -> NDArray[np.int64]:
    """The ids of the largest `count` of each row, ascending; among equals the lowest ids."""
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    return np.sort(order, axis=1)


def _scores(logits: _Floats, by_sigmoid: bool) -> _Floats:
    """What the logits of each token count as."""
    if by_sigmoid:
        return sigmoid(logits)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    softmax: _Floats = powers / powers.sum(axis=1, keepdims=True)
    return softmax
