"""Makes the keys and values of a context: all of them seen, or those that a policy chooses."""

from __future__ import annotations

from flashllm import core
from flashllm.kv_cache.layout import choosing_layers
from flashllm.kv_cache.partial_index import PartialIndex, Skewing
from flashllm.kv_cache.pool import LimitedPool
from flashllm.kv_cache.protocol import KeysValues, SelectableRows
from flashllm.kv_cache.recall_control import RecallControl
from flashllm.kv_cache.selected import SelectedCache
from flashllm.kv_cache.speculative_fetch import SpeculativeFetch
from flashllm.kv_cache.token_policies import (
    HeavyHitters,
    InfiniGen,
    QuantisedKeys,
    SlidingWindow,
    TokenPolicy,
    TopValues,
)
from flashllm.options import KvSelection
from flashllm.spec import ModelSpec


def make_keys_values(
    spec: ModelSpec,
    rows: SelectableRows,
    kernels: core.Kernels,
    selection: KvSelection,
    skewing: Skewing | None = None,
    *,
    pool: LimitedPool | None = None,
    measures_all: bool = False,
) -> KeysValues:
    """Keys and values in `rows`, which have none yet.

    `skewing` is that of the model, or None; a `pool` limits infinigen. Recalls are measured of one
    head a token, or of all.
    """
    context = rows.context
    layers = choosing_layers(spec, selection)
    if not selection.lossy or not layers:
        return rows
    heads, control = (spec.n_heads, spec.n_kv_heads), None
    policy: TokenPolicy
    if selection.policy == "window":
        policy = SlidingWindow(layers, spec.n_kv_heads, selection.share)
    elif selection.policy == "h2o":
        policy = HeavyHitters(layers, heads, context, selection.share, rows)
    elif selection.policy == "values":
        policy = TopValues(layers, selection.share)
    elif selection.policy == "specache":
        index = PartialIndex(spec, context, kernels, 1.0, selection.index_dtype)
        policy = QuantisedKeys(layers, spec.n_kv_heads, selection.share, index)
    else:
        index = PartialIndex(
            spec, context, kernels, selection.ratio, selection.index_dtype, skewing
        )
        control = RecallControl(spec.n_layers, selection.alpha, selection.recall or None)
        fetch = SpeculativeFetch(
            index, layers, spec.n_kv_heads, control, selection.share, corrects=selection.corrects
        )
        policy = InfiniGen(fetch, control, pool)
    return SelectedCache(rows, policy, heads, control, measures_all=measures_all)
