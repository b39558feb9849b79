"""Skewing: what it changes nothing of, what it gathers, and files that cannot be used."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from flashllm.convert import convert
from flashllm.predictors.skewing import RecordingCache, skew_model, skewing_matrices

from flashllm.engine.loading import open_decoder
from flashllm.errors import FlashllmError
from flashllm.flash.file_names import SKEWING_FILE
from flashllm.flash.safetensors_file import pack_tensor_header
from flashllm.flash.skewing_file import read_skewing, usable_skewing, write_skewing
from flashllm.flash.store import Store
from flashllm.large_arrays import Floats
from flashllm.library.removal import own_files
from tests.support.tiny import tiny

IDS = np.random.default_rng(6).integers(3, 97, 120).tolist()
SHAPES = {
    # Biases, rotary positions, and three query heads a key head.
    "grouped": ("qwen2", {"num_key_value_heads": 2, "intermediate_size": 64, "hidden_size": 48}),
    "own heads": ("llama", {"num_key_value_heads": 6, "intermediate_size": 64, "hidden_size": 48}),
}


class WholeCache(RecordingCache):
    """Keeps the queries and keys themselves."""

    seen: dict[str, Floats]

    def append(self, layer: int, keys: Floats, values: Floats) -> int:
        self.seen = {**getattr(self, "seen", {}), f"k{layer}": keys.copy()}
        return super().append(layer, keys, values)

    def attend(self, layer: int, query: Floats, *rest: object) -> Floats:
        self.seen[f"q{layer}"] = query.swapaxes(0, 1).copy()
        return super().attend(layer, query, *rest)


@pytest.fixture(scope="module", params=SHAPES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, changes = SHAPES[request.param]
    root = tmp_path_factory.mktemp("skewing")
    tiny(name, **changes).save_pretrained(root / "source")
    convert(root / "source", root / "model")
    skew_model(root / "model", [IDS], lambda _: None)
    return root / "model"


def test_attention_is_the_same_and_its_energy_is_gathered(model: Path) -> None:
    with open_decoder(model, kv_dtype="f32", contexts=2) as decoder:
        spec = decoder.spec
        cache = WholeCache(spec, 128, "f32", decoder.kernels)
        decoder.prefill(IDS, context=decoder.new_context(cache))
    layers = read_skewing(model, spec)
    assert layers is not None
    group = spec.n_heads // spec.n_kv_heads
    for layer, matrices in enumerate(layers):
        queries, keys = (cache.seen[f"{kind}{layer}"] for kind in "qk")
        for head, matrix in enumerate(matrices):
            own, key = (
                queries[head * group : (head + 1) * group].reshape(-1, spec.head_dim),
                keys[head],
            )
            plain, skewed = own @ key.T, (own @ matrix) @ (key @ matrix).T
            weights = [torch.softmax(torch.from_numpy(x) * 0.35, -1) for x in (plain, skewed)]
            torch.testing.assert_close(weights[1], weights[0], atol=1e-4, rtol=0)
            # The columns are the singular vectors of all queries that share the keys, sorted.
            sizes = np.linalg.norm(own @ matrix, axis=0)
            found = np.sort(sizes)[::-1]
            expected = np.linalg.svd(own.astype(np.float64), compute_uv=False)
            np.testing.assert_allclose(found, expected, rtol=1e-3)
            order = sizes * np.linalg.norm(key @ matrix, axis=0)
            assert (np.diff(order) <= 1e-3 * order[0]).all()


def test_the_same_text_in_pieces_of_other_sizes_counts_alike(model: Path) -> None:
    with open_decoder(model, kv_dtype="f32", contexts=2) as decoder:
        cache = RecordingCache(decoder.spec, 128, "f32", decoder.kernels)
        context = decoder.new_context(cache)
        decoder.prefill(IDS[:50], context=context)
        decoder.prefill(IDS[50:], cached=50, context=context)
        assert cache.tokens == len(IDS)
        found = skewing_matrices(cache.queries[1], cache.keys[1])
    layers = read_skewing(model, decoder.spec)
    assert layers is not None
    np.testing.assert_allclose(np.abs(found), np.abs(layers[1]), atol=5e-3)


def changed(model: Path, directory: Path, content: bytes) -> str:
    """What is said of a model with this file."""
    shutil.copytree(model, directory)
    (directory / SKEWING_FILE).write_bytes(content)
    with Store(directory) as store:
        found, words = usable_skewing(directory, store.spec)
        assert found is None
        with pytest.raises(FlashllmError):
            read_skewing(directory, store.spec)
    assert "flashllm calibrate" in words
    return words


def test_a_file_that_cannot_be_used_is_left_alone_with_a_word(model: Path, tmp_path: Path) -> None:
    whole = (model / SKEWING_FILE).read_bytes()
    flipped = bytearray(whole)
    flipped[-7] ^= 4
    assert "layers.1.skewing at offset" in changed(model, tmp_path / "flipped", bytes(flipped))
    assert "reach to" in changed(model, tmp_path / "short", whole[:-4])
    assert "larger than" in changed(model, tmp_path / "long", whole + bytes(2 << 20))
    assert "too few" in changed(model, tmp_path / "empty", b"")
    other = whole.replace(b'"version":"1"', b'"version":"9"')
    assert "version '9'" in changed(model, tmp_path / "version", other)
    at = whole.index(b'"weights":"') + 11
    foreign = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    assert "other weights" in changed(model, tmp_path / "foreign", foreign)
    bare = pack_tensor_header([("layers.0.skewing", "F32", (1,))]) + b"1234"
    assert "no metadata" in changed(model, tmp_path / "bare", bare)
    shutil.copytree(model, tmp_path / "skewed")
    with Store(model) as store:
        assert usable_skewing(model, store.spec)[1] == ""
        shape = (store.spec.n_kv_heads, store.spec.head_dim, store.spec.head_dim)
        for value in (1, 1e30, np.inf, np.nan):
            matrices = [np.full(shape, value, np.float32)] * store.spec.n_layers
            write_skewing(tmp_path / "skewed", matrices)
            with pytest.raises(FlashllmError, match="not orthogonal"):
                read_skewing(tmp_path / "skewed", store.spec)
        for layers in (matrices[1:], [*matrices, matrices[0]]):
            write_skewing(tmp_path / "skewed", layers)
            with pytest.raises(FlashllmError, match="not of the shape of this model"):
                read_skewing(tmp_path / "skewed", store.spec)
        (tmp_path / "skewed" / SKEWING_FILE).unlink()
        assert read_skewing(tmp_path / "skewed", store.spec) is None
        assert "no file" in usable_skewing(tmp_path / "skewed", store.spec)[1]
    assert SKEWING_FILE in own_files(model)
