"""Attention over encoded keys and values on a device, with torch in f32."""

from __future__ import annotations

import torch
from torch import Tensor

from flashllm.device.decode import decode


def attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    dtype: str,
    window: int,
    scale: float,
    sinks: Tensor | None,
    tile_bytes: int,
) -> Tensor:
    """Attention of the last tokens of a context: [tokens, heads, columns] to the same.

    `keys` and `values` [kv_heads, positions, row_bytes] are encoded. Each token sees itself and
    those before it, the last `window` of them unless that is 0. `sinks` [heads] are scores that
    bring no value. As many key heads go together as have keys of `tile_bytes` in f32, and as many
    tokens as have scores of as many, at least one of each.
    """
    tokens, heads, columns = query.shape
    kv_heads, end, _ = keys.shape
    group = heads // kv_heads
    # A single token sees nothing beyond its window: of several, each has one of its own.
    seen_first = max(end - tokens + 1 - window, 0) if window else 0
    keys, values = keys[:, seen_first:], values[:, seen_first:]
    step = max(tile_bytes // (4 * columns * max(end - seen_first, 1)), 1)
    grouped = query.view(tokens, kv_heads, group, columns).permute(1, 2, 0, 3)
    out = torch.empty_like(grouped)
    for first in range(0, kv_heads, step):
        own = slice(first, min(first + step, kv_heads))
        count = own.stop - own.start
        some_keys = _decoded(keys[own], dtype, columns)[:, None]
        some_values = _decoded(values[own], dtype, columns)[:, None]
        own_sinks = None if sinks is None else sinks.view(kv_heads, group)[own, :, None, None]
        at_once = max(tile_bytes // (4 * count * group * (end - seen_first)), 1)
        for start in range(0, tokens, at_once):
            part = slice(start, min(start + at_once, tokens))
            scores = grouped[own, :, part] @ some_keys.transpose(2, 3) * scale
            if tokens > 1:  # a single one sees all that is left
                hidden = _hidden(seen_first, end, end - tokens + part.start,
                                 part.stop - part.start, window, query.device)  # fmt: skip
                scores = scores.masked_fill(hidden, -torch.inf)
            out[own, :, part] = _softmax(scores, own_sinks) @ some_values
    return out.permute(2, 0, 1, 3).reshape(tokens, heads, columns)


def _hidden(
    seen_first: int, end: int, first: int, tokens: int, window: int, device: torch.device
) -> Tensor:
    """Which positions, seen_first to end - 1, each of the tokens from `first` on does not see."""
    positions = torch.arange(seen_first, end, device=device)
    places = torch.arange(first, first + tokens, device=device)[:, None]
    hidden = positions > places
    if window:
        hidden |= positions <= places - window
    return hidden


def _decoded(rows: Tensor, dtype: str, columns: int) -> Tensor:
    heads, positions, nbytes = rows.shape
    return decode(rows.reshape(-1, nbytes), dtype, columns).view(heads, positions, columns)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Over the last dimension; a sink [heads, group, 1, 1] takes its share."""
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    with_sinks = torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), dim=-1)
    return torch.softmax(with_sinks, dim=-1)[..., :-1]
