"""A synthetic mixture of experts routes as drawn, and what is drawn is like what was recorded."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flashllm.convert import convert
from flashllm.convert.families.known_shapes import describe_shape

from benchmarks.synthetic_experts.__main__ import CONTEXT, SHAPES, main, write
from benchmarks.synthetic_experts.routing import Recording, draw, fold, read_recording
from flashllm.bench.cache.traces import record
from flashllm.engine.loading import open_decoder
from flashllm.errors import UsageError
from flashllm.flash.manifest import read_manifest
from flashllm.progress import SilentProgress
from flashllm.spec import ModelSpec

LAYERS, EXPERTS, RECORDED, TOKENS = 3, 12, 2, 60


def recorded_sets() -> np.ndarray:
    """Skewed, differently in each layer, and half of each token's experts stay for the next."""
    random = np.random.default_rng(3)
    sets = np.empty((LAYERS, TOKENS, RECORDED), np.int32)
    for layer in range(LAYERS):
        odds = random.permutation(1.0 / np.arange(1, EXPERTS + 1))
        last = random.choice(EXPERTS, RECORDED, replace=False, p=odds / odds.sum())
        for token in range(TOKENS):
            others = np.delete(odds, last[0])
            more = random.choice(np.delete(np.arange(EXPERTS), last[0]), p=others / others.sum())
            last = np.array([last[0], more])[:: 1 if token % 3 else -1]
            sets[layer, token] = np.sort(last)
    return sets


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "recorded.csv.gz"
    lines = ["# of a test", "turn,phase,step,layer,slot,expert,weight"]
    for layer, tokens in enumerate(recorded_sets()):
        for token, experts in enumerate(tokens.tolist()):
            lines += [f"0,1,{token},{layer},{slot},{e},0.5" for slot, e in enumerate(experts)]
    lines.append("0,0,0,0,0,11,0.5")  # of the prompt
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def small_spec(name: str) -> ModelSpec:
    spec = describe_shape(name)
    assert spec.experts is not None
    experts = replace(spec.experts, n_experts=EXPERTS, per_token=4, d_ffn=64)
    windows = spec.attention_windows[:LAYERS]
    sizes = {"n_layers": LAYERS, "d_model": 256, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 300}
    return replace(
        spec, experts=experts, d_ffn=EXPERTS * 64, neurons_per_bundle=64, embed_dim=256, **sizes,
        attention_windows=windows, bos_id=None, eos_ids=(),
    )  # fmt: skip


def test_a_recording_is_read(recording: Path) -> None:
    found = read_recording(recording)
    assert np.array_equal(found.sets, recorded_sets())
    assert found.n_experts <= EXPERTS


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "no recorded routing"),
        (b"phase,step,layer,expert\n1,0,0,a", "no recorded routing"),
        (b"phase,step,layer,expert\n1,0,0,1\n1,0,1,1\n1,1,0,2", "other numbers of experts"),
        (b"\xff\xfe", "no recorded routing"),
    ],
)
def test_what_is_no_recording(tmp_path: Path, content: bytes, match: str) -> None:
    (tmp_path / "other.csv").write_bytes(content)
    with pytest.raises(UsageError, match=match):
        read_recording(tmp_path / "other.csv")
    with pytest.raises(UsageError, match="No such file"):
        read_recording(tmp_path / "absent.csv")


def test_what_is_drawn_is_like_what_was_recorded() -> None:
    recorded = Recording("test", recorded_sets(), EXPERTS)
    same = draw(recorded, LAYERS, EXPERTS, RECORDED, 3000, seed=1)
    for layer in range(LAYERS):
        found, was = (
            np.bincount(sets[layer].ravel(), minlength=EXPERTS) / sets[layer].size
            for sets in (same, recorded.sets)
        )
        assert np.abs(found - was).max() < 0.05
    stays = (same[:, 1:, :, None] == same[:, :-1, None, :]).any(axis=3).mean()
    stayed = (recorded.sets[:, 1:, :, None] == recorded.sets[:, :-1, None, :]).any(axis=3).mean()
    assert stays == pytest.approx(stayed, abs=0.06)
    more = draw(recorded, 2, EXPERTS, 5, 200, seed=1)
    assert more.shape == (2, 200, 5)
    assert (np.diff(more, axis=2) > 0).all(), "ascending, none twice"
    assert np.array_equal(more, draw(recorded, 2, EXPERTS, 5, 200, seed=1))
    with pytest.raises(UsageError, match="has 3 layers"):
        draw(recorded, LAYERS + 1, EXPERTS, RECORDED, 10, seed=1)


def test_a_smaller_model_has_experts_that_stand_for_several() -> None:
    recorded = Recording("test", recorded_sets(), EXPERTS)
    folded = fold(recorded, 5)
    assert (folded.n_experts, folded.sets.shape) == (5, recorded.sets.shape)
    for sets, found in zip(recorded.sets, folded.sets, strict=True):
        ranked = -np.sort(-np.bincount(sets.ravel(), minlength=EXPERTS))
        expected = [ranked[first::5].sum() for first in range(5)]
        assert sorted(np.bincount(found.ravel(), minlength=5)) == sorted(expected)
    drawn = draw(folded, LAYERS, 5, 3, 200, seed=1)
    assert (np.diff(drawn, axis=2) > 0).all(), "none twice"


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [("qwen3-30b-a3b", ("int4", None)), ("gpt-oss-20b", ("mxfp4", "int8"))],
)
def test_an_answer_goes_through_the_table(
    recording: Path, tmp_path: Path, name: str, dtypes: tuple[str, str | None]
) -> None:
    sets = draw(read_recording(recording), LAYERS, EXPERTS, 4, 100, seed=2)
    shape = SHAPES[name]
    maker = shape.maker(small_spec(name), sets, 2)
    write(shape, maker, "test", tmp_path / "m.gguf", SilentProgress())
    convert(tmp_path / "m.gguf", tmp_path / "model")
    manifest = read_manifest(tmp_path / "model")
    assert (manifest.spec.dtype, manifest.spec.resident_dtype) == dtypes
    wanted = replace(small_spec(name), dtype=dtypes[0], resident_dtype=dtypes[1])
    assert manifest.spec == replace(wanted, max_positions=CONTEXT)
    assert manifest.synthetic
    with open_decoder(tmp_path / "model") as decoder:
        logits, ids = decoder.prefill([150, 260, 30]), []
        for _ in range(40):
            ids.append(int(np.argmax(logits)))
            logits = decoder.decode(ids[-1])
    assert ids == [(31 + n) % 100 for n in range(40)]
    trace = record(tmp_path / "model", [ids])
    for layer in range(LAYERS):
        for token, found in zip(ids, trace.sets[layer], strict=True):
            assert found.tolist() == sets[layer, token].tolist()


def test_the_command_refuses_what_it_cannot_write(recording: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken.gguf"
    taken.write_bytes(b"")
    routing = ["--routing", str(recording)]
    with pytest.raises(UsageError, match="has 3 layers and experts up to"):
        main(["qwen3-30b-a3b", str(taken), *routing])
    with pytest.raises(UsageError, match="--codes 1: expected 2 to"):
        main(["qwen3-30b-a3b", str(taken), *routing, "--codes", "1"])
