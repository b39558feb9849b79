"""Some layers of a model as a model of its own: what a stage of a pipeline computes."""

from __future__ import annotations

import dataclasses

from flashllm.spec.model import ModelSpec


def of_layers(spec: ModelSpec, layers: range) -> ModelSpec:
    """The spec of neighbouring layers, counted from 0 again; at least one of them has bundles."""
    first, last = layers.start, layers.stop
    assert 0 <= first < last <= spec.n_layers
    windows = spec.attention_windows[first:last]
    experts = spec.experts
    if experts is not None:
        dense = max(experts.dense_layers - first, 0)
        experts = dataclasses.replace(
            experts, dense_layers=dense, dense_d_ffn=experts.dense_d_ffn if dense else 0
        )
    return dataclasses.replace(
        spec,
        n_layers=len(layers),
        attention_windows=windows,
        window_rope=spec.window_rope if any(windows) else None,
        unrotated_layers=tuple(at - first for at in spec.unrotated_layers if at in layers),
        experts=experts,
    )
