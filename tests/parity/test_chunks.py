"""A prompt gives the same logits, bit for bit, however it is cut, and token by token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flashllm.convert import convert
from safetensors.torch import load_file, save_file

from flashllm import core
from flashllm.engine.loading import load_decoder
from flashllm.engine.local import open_model
from flashllm.model import neuron_slices
from flashllm.options import Select
from flashllm.planning import plan as planning
from tests.support.tiny import save_exact_predictors, save_opt, sparse_opt, tiny

IDS = np.random.default_rng(5).integers(3, 96, size=120).tolist()
CHUNKS = (1, 7, 64, 512)
Rewrite = dict[str, Any]


def gated(**changes: Any) -> torch.nn.Module:
    """Rotary positions, RMS norms, and widths that fill no register."""
    sizes = {"intermediate_size": 150, "num_key_value_heads": 3, "hidden_act": "relu"}
    return tiny("llama", **{**sizes, **changes})


def experts(**changes: Any) -> torch.nn.Module:
    """A router that has favourites, and experts whose widths fill no register."""
    sizes = {
        "num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 39,
        "num_key_value_heads": 2, "head_dim": 6, "norm_topk_prob": True,
    }  # fmt: skip
    return tiny("qwen3_moe", **{**sizes, **changes})


def many_weights() -> torch.nn.Module:
    """So many that several threads of torch compute what lies between the products."""
    return gated(
        hidden_size=1024, intermediate_size=4160, num_hidden_layers=1, num_attention_heads=8,
        num_key_value_heads=4,
    )  # fmt: skip


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "opt": sparse_opt,
    "gated": gated,
    "silu": lambda: gated(hidden_act="silu"),
    "gelu": lambda: gated(hidden_act="gelu"),
    "squared": lambda: gated(hidden_act="relu2"),
    "window": lambda: tiny(
        "mistral", intermediate_size=150, num_key_value_heads=2, hidden_act="relu", sliding_window=9
    ),
    "norms of heads": lambda: tiny(
        "qwen3", intermediate_size=150, num_key_value_heads=2, hidden_act="relu", head_dim=6
    ),
    "many weights": many_weights,
    "experts": experts,
    "experts, whole rows apart": lambda: experts(
        hidden_size=64, moe_intermediate_size=32, num_attention_heads=4
    ),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a model by its name, made once."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("checkpoint")
            MODELS[name]().save_pretrained(made[name])
        return made[name]

    return of


def logits(directory: Path, select: Select | None, chunk: int) -> np.ndarray:
    """Logits [tokens, vocab]; a chunk of 0 is the decoder's way, one token after the other."""
    decoder, plan, store = load_decoder(directory, select=select, chunk_tokens=chunk or None)
    assert not plan.prompt_is_selected or plan.select in ("gate", "router")
    with store:
        if chunk:
            assert plan.prefill.tokens == chunk
            return decoder.logits(IDS)
        found = [decoder.logits(IDS[:1])[0]]
        found += [decoder.decode(token) for token in IDS[1:]]
    return np.stack(found)


def check(directory: Path, select: Select | None = "all") -> None:
    expected = logits(directory, select, CHUNKS[0])
    assert np.abs(expected).max() > 0.1
    for chunk in CHUNKS[1:]:
        assert np.array_equal(logits(directory, select, chunk), expected), chunk
    assert np.array_equal(logits(directory, select, 0), expected), "token by token"


@pytest.mark.parametrize("name", list(MODELS))
def test_every_kind_of_model(checkpoint: Callable[[str], Path], name: str, tmp_path: Path) -> None:
    convert(checkpoint(name), tmp_path / "model", dtype="f16")
    check(tmp_path / "model", "router" if name.startswith("experts") else "all")


@pytest.mark.parametrize("select", ["oracle", "gate"])
def test_exact_selectors(checkpoint: Callable[[str], Path], select: Select, tmp_path: Path) -> None:
    convert(checkpoint("gated"), tmp_path / "model", dtype="int8")
    check(tmp_path / "model", select)


@pytest.mark.parametrize("isa", core.available_isas())
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "int8", "int4"])
@pytest.mark.parametrize(
    ("name", "select"), [("gated", "all"), ("silu", "all"), ("experts", "router")]
)
def test_every_encoding_with_all_instructions_of_this_machine(
    checkpoint: Callable[[str], Path],
    name: str,
    select: Select,
    isa: str,
    dtype: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLASHLLM_ISA", isa)
    convert(checkpoint(name), tmp_path / "model", dtype=dtype)
    check(tmp_path / "model", select)


def test_experts_in_mxfp4(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Its kernels are int4's, which the test above runs with all instructions."""
    convert(checkpoint("experts"), tmp_path / "model", dtype="mxfp4")
    check(tmp_path / "model", "router")


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_fast_arithmetic(checkpoint: Callable[[str], Path], dtype: str, tmp_path: Path) -> None:
    convert(checkpoint("gated"), tmp_path / "model", dtype=dtype)
    found = []
    for arithmetic in ("fast", "exact"):
        for chunk in CHUNKS:
            decoder, plan, store = load_decoder(
                tmp_path / "model", select="all", chunk_tokens=chunk, arithmetic=arithmetic
            )
            assert plan.arithmetic == arithmetic
            with store:
                found.append(decoder.logits(IDS))
    fast, exact = found[: len(CHUNKS)], found[len(CHUNKS) :]
    assert all(np.array_equal(one, fast[0]) for one in fast)
    error = np.abs(fast[0] - exact[0]).max() / np.abs(exact[0]).max()
    assert 1e-4 < error < 0.15


@pytest.mark.parametrize("kv_dtype", ["f32", "int8"])
def test_every_encoding_of_keys_and_values(
    checkpoint: Callable[[str], Path], kv_dtype: str, tmp_path: Path
) -> None:
    convert(checkpoint("gated"), tmp_path / "model", dtype="f16")
    found = []
    for chunk in CHUNKS:
        decoder, _, store = load_decoder(
            tmp_path / "model", select="all", chunk_tokens=chunk, kv_dtype=kv_dtype
        )
        with store:
            found.append(decoder.logits(IDS))
    assert all(np.array_equal(one, found[0]) for one in found)


def selected_logits(directory: Path, chunk: int, **options: Any) -> np.ndarray:
    """Logits [some prompts, vocab] of a prompt through the selected neurons, and of two turns."""
    decoder, plan, store = load_decoder(
        directory, prompt_neurons="selected", chunk_tokens=chunk or None, **options
    )
    assert plan.prompt_is_selected
    with store:
        if not chunk:
            found = [decoder.prefill(IDS[:1])]
            found += [decoder.decode(token) for token in IDS[1:]]
            return np.stack([found[index] for index in (0, 69, 70, 119)])
        found = [decoder.prefill(IDS[:1]), decoder.prefill(IDS[:70])]
        found += [decoder.decode(IDS[70]), decoder.prefill(IDS[71:], cached=71)]
    return np.stack(found)


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8", "int4"])
def test_a_prompt_through_predicted_neurons(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = sparse_opt()
    predictors = save_exact_predictors(model, tmp_path / "predictors.safetensors")
    spoil(predictors)
    convert(
        save_opt(model, tmp_path / "source"), tmp_path / "model", dtype=dtype, predictors=predictors
    )
    expected = selected_logits(tmp_path / "model", 0)
    for chunk in CHUNKS:
        assert np.array_equal(selected_logits(tmp_path / "model", chunk), expected), chunk
    # Whatever has room, and however many rounds a layer takes.
    small = {"window": 1, "io_threads": 1}
    assert np.array_equal(selected_logits(tmp_path / "model", 64, **small), expected)
    decoder, _, store = load_decoder(tmp_path / "model", prompt_neurons="exact")
    with store:
        exact = decoder.prefill(IDS[:70])
    # Whether a block is multiplied with each token's own neurons, or all of it.
    for own in (True, False):
        monkeypatch.setattr(neuron_slices, "is_less_work", lambda _, own=own: own)
        assert np.array_equal(selected_logits(tmp_path / "model", 512), expected), own
    assert not np.array_equal(exact, expected[1]), "neurons are left out"


def spoil(path: Path) -> None:
    """Predictors that miss some neurons, and predict some in vain."""
    tensors = load_file(path)
    generator = torch.Generator().manual_seed(3)
    for name, tensor in tensors.items():
        if name.endswith(".bias"):
            tensors[name] = tensor + 0.3 * torch.randn(tensor.shape, generator=generator)
    save_file(tensors, path)


def test_few_tokens_read_what_they_need(tmp_path: Path) -> None:
    model = sparse_opt()
    predictors = save_exact_predictors(model, tmp_path / "predictors.safetensors")
    convert(save_opt(model, tmp_path / "source"), tmp_path / "model", predictors=predictors)
    read = {}
    for name in ("exact", "selected"):
        with open_model(tmp_path / "model", prompt_neurons=name) as opened:
            generation = opened.generate(IDS[:2], 1)
            list(generation)
            read[name] = generation.prefill.bytes_read
            again = opened.generate(IDS[:2], 1)
            list(again)
            assert again.prefill.bytes_read == 0
    assert 0 < read["selected"] < 0.75 * read["exact"]


def test_more_tokens_read_what_they_need_once_slots_are_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of the two is a matter of reading: the logits are the same."""
    model = sparse_opt()
    predictors = save_exact_predictors(model, tmp_path / "predictors.safetensors")
    convert(save_opt(model, tmp_path / "source"), tmp_path / "model", predictors=predictors)
    found: dict[int, list[np.ndarray]] = {}
    for limit in (1, 64):
        monkeypatch.setattr(planning, "union_tokens_of", lambda *_: 1)
        monkeypatch.setattr(planning, "warm_union_tokens_of", lambda *_, limit=limit: limit)
        decoder, plan, store = load_decoder(
            tmp_path / "model", prompt_neurons="selected", least=True
        )
        assert (plan.needed_tokens, plan.warm_needed_tokens) == (1, limit)
        whole: list[object] = []
        expect = decoder.pool.expect

        def noted(
            layers: Any, *spare: int, whole: list[object] = whole, expect: Any = expect
        ) -> None:
            whole.append(layers)
            expect(layers, *spare)

        monkeypatch.setattr(decoder.pool, "expect", noted)
        with store:
            found[limit] = [decoder.prefill(IDS[:20])]
            assert len(whole) == 1, "slots are empty"
            found[limit] += [decoder.decode(token) for token in IDS[20:60]]
            assert decoder.pool.is_nearly_full
            found[limit] += [decoder.prefill(IDS[60:80])]
            assert len(whole) == (1 if limit == 64 else 2)
    assert np.array_equal(found[1], found[64])
