"""Shapes of models for tests of arithmetic, which need no weights."""

from __future__ import annotations

from flashllm.spec import ModelSpec

SPEC = ModelSpec(
    n_layers=4,
    d_model=256,
    n_heads=4,
    n_kv_heads=4,
    head_dim=64,
    d_ffn=1024,
    vocab_size=4096,
    embed_dim=256,
    max_positions=512,
    position_offset=2,
    dtype="f16",
    norm_placement="pre",
    norm_affine=True,
    norm_eps=1e-5,
    final_norm=True,
    attention_bias=True,
    ffn_bias=True,
    tied_head=True,
    activation="relu",
)
