"""Experts at once and one by one: the same bits, wherever they lie."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flashllm.convert import convert
from safetensors.numpy import load_file

from flashllm import core
from flashllm.flash.store import Store
from flashllm.model.ffn_experts import Experts, ExpertTiles, Stride
from flashllm.model.router import SelectRouted
from flashllm.telemetry.costs import useful_share
from flashllm.weight_cache.counters import StreamCounters
from tests.support.smallthinker import CONFIG, SmallThinker
from tests.support.tiny import tiny

SIZES: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "num_key_value_heads": 2,
    "num_attention_heads": 4,
    "head_dim": 8,
}


@pytest.mark.parametrize(
    ("width", "neurons", "dtype"),
    [(64, 32, "f16"), (64, 32, "f32"), (40, 19, "f16"), (64, 32, "int8")],
)
def test_several_have_the_bits_of_each(
    tmp_path: Path, width: int, neurons: int, dtype: str
) -> None:
    model = tiny("qwen3_moe", hidden_size=width, moe_intermediate_size=neurons, **SIZES)
    model.save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "model", dtype=dtype)
    with Store(tmp_path / "model") as store:
        spec, header = store.spec, store.header
        resident = store.load_resident(False, lambda _: None)
        kernels = core.open_kernels(2)
        experts = Experts(
            spec, header, kernels, SelectRouted(resident, spec, kernels), StreamCounters()
        )
        raw = np.fromfile(tmp_path / "model" / "ffn.bundles", np.uint8)[header.data_offset :]
        x = np.random.default_rng(1).normal(size=width).astype(np.float32)
        positions = np.array([0, 2, 3, 5], dtype=np.int32)
        found = experts.outputs(0, raw, positions, positions, x, None)
        for number, position in enumerate(positions):
            alone = positions[number : number + 1]
            assert np.array_equal(experts.outputs(0, raw, alone, alone, x, None)[0], found[number])
            among = experts.of_tokens(raw, int(position), np.stack([x, -x, x]))
            assert np.array_equal(among[2], found[number])
        assert len({tuple(row) for row in found.tolist()}) == 4
        kernels.close()


@pytest.mark.parametrize(("dtype", "closed"), [("f32", 0.5), ("f16", 0.5), ("int8", 1.0)])
def test_silent_neurons_are_skipped_without_a_trace(
    tmp_path: Path, dtype: str, closed: float
) -> None:
    """Experts of ReLU: the same bits as with all neurons, counted; also where none is active."""
    sizes = {**CONFIG, "hidden_size": 64, "moe_ffn_hidden_size": 32}
    SmallThinker(**sizes).save(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "model", dtype=dtype)
    with Store(tmp_path / "model") as store:
        spec, header, counters = store.spec, store.header, StreamCounters()
        resident = store.load_resident(False, lambda _: None)
        kernels = core.open_kernels(2)
        router = SelectRouted(resident, spec, kernels)
        experts = Experts(spec, header, kernels, router, counters)
        raw = np.fromfile(tmp_path / "model" / "ffn.bundles", np.uint8)[header.data_offset :]
        x = np.random.default_rng(3).normal(size=64).astype(np.float32) * np.float32(closed < 1)
        positions = np.array([1, 4, 6], dtype=np.int32)
        found = experts.outputs(0, raw, positions, positions, x, None)
        silent = 0
        for number, position in enumerate(positions.tolist()):
            among = experts.of_tokens(raw, position, np.stack([x, -x]))
            assert found[number].tobytes() == among[0].tobytes()
            if closed < 1 and dtype != "int8":
                name = f"model.layers.0.block_sparse_moe.experts.{position}.gate.weight"
                gate = load_file(tmp_path / "source" / "model.safetensors")[name]
                silent += int((gate @ x <= 0).sum())
        skips = Stride.of(header.stride, header.bundle_parts[0] // 32, 64) is not None
        assert counters.neurons == (3 * 32 if skips else 0)
        if skips:
            assert counters.neurons_silent == (silent if closed < 1 else 3 * 32)
        assert useful_share(96, 32) == pytest.approx((96 + 64 + 64) / 288)
        kernels.close()


@pytest.mark.parametrize("tokens", [1, 3, 90])
def test_tiles_add_experts_in_order_to_the_tokens_that_chose_them(
    tmp_path: Path, tokens: int
) -> None:
    """Also tiles that no token chose, and those with few tokens an expert or many."""
    model = tiny("qwen3_moe", hidden_size=64, moe_intermediate_size=32, **SIZES)
    model.save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "model", dtype="f32")
    with Store(tmp_path / "model") as store:
        spec, header = store.spec, store.header
        resident = store.load_resident(False, lambda _: None)
        kernels = core.open_kernels(2)
        experts = Experts(
            spec, header, kernels, SelectRouted(resident, spec, kernels), StreamCounters()
        )
        raw = np.fromfile(tmp_path / "model" / "ffn.bundles", np.uint8)[header.data_offset :]
        random = np.random.default_rng(2)
        x = random.normal(size=(tokens, 64)).astype(np.float32)
        weights = random.random((tokens, 6)).astype(np.float32)
        weights[:, [0, 1, 4]] = 0
        weights[1::2, 2] = 0
        tiles = ExpertTiles(experts, x, weights)
        out = np.zeros((tokens, 64), np.float32)
        for first in (0, 2, 4):
            ids = np.arange(first, first + 2, dtype=np.int32)
            tile: Any = SimpleNamespace(parts=lambda ids=ids: (ids, ids, raw), columns=ids)
            used = tiles.add(tile, out)
            for token in (0, tokens - 1):
                assert used(token).tolist() == weights[token:, ids].tolist()
        expected = np.zeros((tokens, 64), np.float32)
        for expert in (2, 3, 5):
            for token in np.flatnonzero(weights[:, expert]):
                alone = experts.of_tokens(raw, expert, x[token : token + 1])[0]
                expected[token] += alone * weights[token, expert]
        assert out.tolist() == expected.tolist()
        kernels.close()
