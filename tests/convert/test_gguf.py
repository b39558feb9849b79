"""Models in GGUF become what the checkpoint of transformers with the same values becomes."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from flashllm.convert import convert, describe, verify
from flashllm.convert.source.gguf_types import block_type, decoded_by_package, find_type
from safetensors.numpy import load_file

from flashllm.core.numpy_twin.rows import decode
from flashllm.dtypes import row_bytes
from flashllm.errors import ModelError, NotACheckpoint, UnsupportedModel, UsageError
from flashllm.flash.layout import read_header
from flashllm.flash.manifest import format_requantised, read_manifest
from flashllm.library.scan import Conditions, examine
from tests.support.gguf_models import Written, paired, write_gguf
from tests.support.smallthinker import SmallThinker
from tests.support.tiny import tiny

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
}
DENSE: dict[str, Any] = {**SIZES, "intermediate_size": 96}
EXPERTS: dict[str, Any] = {**SIZES, "num_experts": 5, "num_experts_per_tok": 2}
GLM: dict[str, Any] = {
    **EXPERTS,
    "head_dim": 32,
    "intermediate_size": 96,
    "moe_intermediate_size": 64,
    "n_routed_experts": 5,
    "n_shared_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "attention_bias": True,
    "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}
del GLM["num_experts"]
SMALLTHINKER: dict[str, Any] = {
    **SIZES,
    "head_dim": 32,
    "num_hidden_layers": 2,
    "moe_num_primary_experts": 5,
    "moe_num_active_primary_experts": 2,
    "moe_ffn_hidden_size": 64,
    "eos_token_id": 2,
    "rope_layout": [1, 1],
    "sliding_window_layout": [0, 0],
}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "llama", {**DENSE, "tie_word_embeddings": False}),
    "llama, biases, tied": (
        "llama",
        "llama",
        {**DENSE, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "mixtral": (
        "mixtral",
        "llama",
        {**SIZES, "intermediate_size": 64, "num_local_experts": 3, "num_experts_per_tok": 2},
    ),
    "qwen2": ("qwen2", "qwen2", DENSE),
    "qwen3": ("qwen3", "qwen3", {**DENSE, "head_dim": 32}),
    "qwen3_moe": (
        "qwen3_moe",
        "qwen3moe",
        {**EXPERTS, "head_dim": 32, "moe_intermediate_size": 64, "norm_topk_prob": True},
    ),
    "olmoe": ("olmoe", "olmoe", {**EXPERTS, "intermediate_size": 64}),
    "glm4_moe": ("glm4_moe", "glm4moe", GLM),
    "glm4_moe, norms, groups, all of a head turned": (
        "glm4_moe",
        "glm4moe",
        {
            **GLM,
            "use_qk_norm": True,
            "attention_bias": False,
            "n_routed_experts": 6,
            "n_group": 3,
            "topk_group": 2,
            "first_k_dense_replace": 0,
            "norm_topk_prob": False,
            "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        },
    ),
    "smallthinker": ("smallthinker", "smallthinker", SMALLTHINKER),
    "smallthinker, windows, some layers without positions": (
        "smallthinker",
        "smallthinker",
        {
            **SMALLTHINKER,
            "num_hidden_layers": 6,
            "moe_primary_router_apply_softmax": True,
            "tie_word_embeddings": False,
            "rope_layout": [0, 1, 1, 1, 0, 1],
            "sliding_window_layout": [0, 1, 1, 1, 0, 1],
        },
    ),
    "arcee": ("arcee", "arcee", {**DENSE, "tie_word_embeddings": False}),
    "phi3": ("phi3", "phi3", {**DENSE, "tie_word_embeddings": False, "sliding_window": None}),
}
MATRICES = ("gate", "up", "down")
DENSE_NAMES = [
    name for name, (_, _, sizes) in MODELS.items() if not any("expert" in key for key in sizes)
]
WITH_EXPERTS = [name for name in MODELS if name not in DENSE_NAMES]


def saved(name: str, directory: Path) -> Path:
    """A tiny checkpoint, whose first tokens are special ones."""
    model_type, _, sizes = MODELS[name]
    if model_type == "smallthinker":
        SmallThinker(**sizes).save(directory)
        return directory
    tiny(model_type, **sizes).save_pretrained(directory)
    return directory


def written(name: str, root: Path, kind: str, **options: Any) -> Written:
    return write_gguf(saved(name, root / "source"), root, MODELS[name][1], kind, **options)


def weights(directory: Path) -> tuple[bytes, bytes]:
    """Resident weights and bundles, without the id that says where they are from."""
    bundles = (directory / "ffn.bundles").read_bytes()
    start = read_header(directory / "ffn.bundles").data_offset
    return (directory / "resident.safetensors").read_bytes(), bundles[start:]


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "F32") for name in MODELS), ("llama", "BF16"), ("mixtral", "F16"), ("phi3", "F16")],
)
def test_plain_types(tmp_path: Path, name: str, kind: str) -> None:
    files = written(name, tmp_path, kind)
    convert(files.gguf, tmp_path / "found")
    dtype = kind.lower()
    convert(files.checkpoint, tmp_path / "expected", dtype=dtype)
    assert weights(tmp_path / "found") == weights(tmp_path / "expected")
    found, expected = (read_manifest(tmp_path / made) for made in ("found", "expected"))
    assert found.spec == expected.spec == describe(files.gguf)
    assert (found.name, format_requantised(found.source)) == ("model", "")
    assert list(found.source["files"]) == ["model.gguf"]
    assert verify(tmp_path / "found").ok


@pytest.mark.parametrize("name", ["qwen3", "olmoe"])
def test_plain_types_may_be_rounded(tmp_path: Path, name: str) -> None:
    files = written(name, tmp_path, "F16")
    convert(files.gguf, tmp_path / "found", dtype="int8")
    convert(files.checkpoint, tmp_path / "expected", dtype="int8")
    assert weights(tmp_path / "found") == weights(tmp_path / "expected")
    assert read_manifest(tmp_path / "found").source["overrides"] == {"dtype": "int8"}
    assert describe(files.gguf, resident_dtype="int8").encoding_label == "f16, resident ones int8"


@pytest.mark.parametrize("name", WITH_EXPERTS)
@pytest.mark.parametrize(
    ("kind", "dtype"), [("Q8_0", "int8"), ("Q4_0", "int4"), ("MXFP4", "mxfp4")]
)
def test_experts_in_groups_are_kept_bit_for_bit(
    tmp_path: Path, name: str, kind: str, dtype: str
) -> None:
    files = written(name, tmp_path, kind)
    convert(files.gguf, tmp_path / "found")
    spec = read_manifest(tmp_path / "found").spec
    assert (spec.dtype, spec.resident_dtype) == (dtype, None)
    assert spec.experts is not None
    width, neurons = spec.d_model, spec.experts.d_ffn
    header = read_header(tmp_path / "found" / "ffn.bundles")
    raw = np.frombuffer(weights(tmp_path / "found")[1], np.uint8)
    for layer in range(spec.dense_layers, spec.n_layers):
        for expert in range(spec.experts.n_experts):
            number = (layer - spec.dense_layers) * spec.experts.n_experts + expert
            place = number * header.stride
            for matrix, rows, columns in (
                ("gate", neurons, width), ("up", neurons, width), ("down", width, neurons)
            ):  # fmt: skip
                nbytes = rows * row_bytes(dtype, columns)
                own = raw[place : place + nbytes].reshape(rows, -1)
                wanted = files.decoded[f"blk.{layer}.ffn_{matrix}_exps.weight"][expert]
                assert np.array_equal(decode(own, dtype, columns), wanted)
                blocks = quantised(files, layer, matrix, expert)
                assert np.array_equal(own, repacked(blocks, 1 if kind == "MXFP4" else 2))
                place += nbytes
    assert verify(tmp_path / "found").ok


def quantised(files: Written, layer: int, matrix: str, expert: int) -> np.ndarray:
    """The bytes of an expert's matrix as the package reads them: [rows, groups, bytes]."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(files.gguf).tensors}
    tensor = tensors[f"blk.{layer}.ffn_{matrix}_exps.weight"]
    _, nbytes = gguf.GGML_QUANT_SIZES[tensor.tensor_type]
    data = tensor.data[expert]
    return data.reshape(len(data), -1, nbytes)


def repacked(blocks: np.ndarray, scale_bytes: int) -> np.ndarray:
    """The scale of a block goes behind the numbers of the whole row, and nothing else changes."""
    rows = []
    for row in blocks:
        numbers = b"".join(block[scale_bytes:].tobytes() for block in row)
        rows.append(numbers + b"".join(block[:scale_bytes].tobytes() for block in row))
    return np.stack([np.frombuffer(row, np.uint8) for row in rows])


@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "phi3"])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "MXFP4"])
def test_f32_holds_what_blocks_hold(tmp_path: Path, name: str, kind: str) -> None:
    files = written(name, tmp_path, kind)
    convert(files.gguf, tmp_path / "found", dtype="f32")
    convert(files.checkpoint, tmp_path / "expected", dtype="f32")
    assert weights(tmp_path / "found") == weights(tmp_path / "expected")


@pytest.mark.parametrize("name", DENSE_NAMES)
def test_columns_of_blocks_are_rounded_only_if_asked_for(tmp_path: Path, name: str) -> None:
    files = written(name, tmp_path, "Q8_0")
    with pytest.raises(UnsupportedModel, match=r"ffn_down\.weight \(Q8_0 to int8\).*--requantise"):
        convert(files.gguf, tmp_path / "found")
    assert not (tmp_path / "found").exists()
    convert(files.gguf, tmp_path / "found", requantise=True)
    convert(files.checkpoint, tmp_path / "expected", dtype="int8")
    found, expected = (read_manifest(tmp_path / made) for made in ("found", "expected"))
    assert found.spec == expected.spec
    assert format_requantised(found.source) == "requantised from Q8_0"
    assert found.source["overrides"] == {"requantise": True}
    # Rows of up, which are kept, and columns of down, which are rounded as plain weights would be.
    row = row_bytes("int8", found.spec.d_model)
    bundle = np.frombuffer(weights(tmp_path / "expected")[1], np.uint8)
    own = np.frombuffer(weights(tmp_path / "found")[1], np.uint8)
    stride = read_header(tmp_path / "found" / "ffn.bundles").stride
    last = row * (found.spec.rows_per_neuron - 1)
    assert np.array_equal(
        own.reshape(-1, stride)[:, last : last + row],
        bundle.reshape(-1, stride)[:, last : last + row],
    )


def test_other_blocks_need_to_be_asked_for_and_are_decoded_by_the_package(tmp_path: Path) -> None:
    name = "qwen3_moe"
    kinds = {"output.weight": "Q5_1", "blk.1.attn_v.weight": "Q8_0"}
    files = written(name, tmp_path, "Q4_0", kinds=kinds)
    wanted = r"output\.weight \(Q5_1 to int8\).*--requantise.*--resident-dtype f32"
    with pytest.raises(UnsupportedModel, match=wanted):
        describe(files.gguf)
    exact = describe(files.gguf, resident_dtype="f32")
    assert (exact.dtype, exact.resident_dtype) == ("int4", "f32")
    convert(files.gguf, tmp_path / "found", requantise=True)
    manifest = read_manifest(tmp_path / "found")
    assert (manifest.spec.dtype, manifest.spec.resident_dtype) == ("int4", "int8")
    assert format_requantised(manifest.source) == "requantised from Q5_1"
    remarks = examine(tmp_path / "found", Conditions()).remarks
    assert "lossy: requantised from Q5_1" in remarks
    convert(files.checkpoint, tmp_path / "plain", dtype="int4", resident_dtype="int8")
    found, plain = (
        load_file(tmp_path / made / "resident.safetensors") for made in ("found", "plain")
    )
    assert np.array_equal(found["head.weight"], plain["head.weight"])
    decoded = decode(found["layers.1.attn.v.weight"], "int8", 64)
    assert np.array_equal(decoded, files.decoded["blk.1.attn_v.weight"])
    decoded = decode(found["layers.0.attn.v.weight"], "int8", 64)
    assert np.array_equal(decoded, files.decoded["blk.0.attn_v.weight"])


def test_two_types_that_groups_hold_need_no_rounding(tmp_path: Path) -> None:
    files = written("olmoe", tmp_path, "Q4_0", kinds={"output.weight": "Q8_0"})
    assert describe(files.gguf).encoding_label == "int4, resident ones int8"
    # As published files in MXFP4 are.
    experts = {f"blk.{i}.ffn_{m}_exps.weight": "MXFP4" for i in (0, 1) for m in MATRICES}
    (tmp_path / "mxfp4").mkdir()
    mixed = write_gguf(tmp_path / "source", tmp_path / "mxfp4", "olmoe", "Q8_0", kinds=experts)
    assert describe(mixed.gguf).encoding_label == "mxfp4, resident ones int8"
    assert describe(files.gguf, dtype="int8").encoding_label == "int8"
    with pytest.raises(UnsupportedModel, match=r"output\.weight \(Q8_0 to int4\)"):
        describe(files.gguf, resident_dtype="int4")


@pytest.mark.parametrize(
    ("kind", "other", "expected"),
    [("F16", "BF16", "f32"), ("Q4_0", "Q8_0", "int8"), ("F16", "Q8_0", None)],
)
def test_feed_forward_weights_of_two_types(
    tmp_path: Path, kind: str, other: str, expected: str | None
) -> None:
    files = written("olmoe", tmp_path, kind, kinds={"blk.1.ffn_up_exps.weight": other})
    if expected is not None:
        assert describe(files.gguf).dtype == expected
        return
    with pytest.raises(
        UnsupportedModel, match=r"blk\.1\.ffn_up_exps\.weight \(Q8_0 to f16\), where"
    ):
        describe(files.gguf)


def test_the_package_is_needed_for_other_blocks_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = written("olmoe", tmp_path, "Q8_0")
    (tmp_path / "more").mkdir()
    other = write_gguf(tmp_path / "source", tmp_path / "more", "olmoe", "Q5_0")
    monkeypatch.setitem(sys.modules, "gguf", None)
    block_type.cache_clear()
    assert describe(exact.gguf).dtype == "int8"
    assert (find_type("q8_0"), find_type("q5_0")) == (block_type(8, ""), None)
    with pytest.raises(UsageError, match=r"type 6, which the package gguf .*flashllm\[gguf\]"):
        describe(other.gguf)


def test_rows_in_pairs_are_those_of_rotations_of_neighbours() -> None:
    """As llama.cpp rotates this architecture: value 2j with 2j + 1, not j with j + n/2."""
    heads, dims = 3, 8
    generator = np.random.default_rng(0)
    queries, keys = generator.standard_normal((2, heads, dims))
    angles = np.outer([5.0, 11.0], 10000.0 ** -(np.arange(dims // 2) * 2 / dims))

    def of_halves(x: np.ndarray, angle: np.ndarray) -> np.ndarray:
        first, second = x[:, : dims // 2], x[:, dims // 2 :]
        turned = first * np.cos(angle) - second * np.sin(angle)
        return np.concatenate([turned, second * np.cos(angle) + first * np.sin(angle)], axis=1)

    def of_neighbours(x: np.ndarray, angle: np.ndarray) -> np.ndarray:
        turned = (x[:, ::2] + 1j * x[:, 1::2]) * np.exp(1j * angle)
        return np.stack([turned.real, turned.imag], axis=-1).reshape(heads, dims)

    def of_file(x: np.ndarray) -> np.ndarray:
        return paired(x.reshape(-1, 1), heads).reshape(heads, dims)

    expected = (of_halves(queries, angles[0]) * of_halves(keys, angles[1])).sum(axis=1)
    found = of_neighbours(of_file(queries), angles[0]) * of_neighbours(of_file(keys), angles[1])
    np.testing.assert_allclose(found.sum(axis=1), expected, rtol=1e-12)


def test_what_the_package_does_not_decode() -> None:
    """Types that it has the sizes of, and no weights are ever stored in."""
    kind = find_type("q8_1")
    assert kind is not None
    with pytest.raises(UnsupportedModel, match="Q8_1: the installed gguf cannot decode it"):
        decoded_by_package(np.zeros(kind.block_bytes, np.uint8), kind)


def test_parts_of_a_model(tmp_path: Path) -> None:
    files = written("qwen3_moe", tmp_path, "F16", parts=3)
    names = sorted(path.name for path in tmp_path.glob("*.gguf"))
    assert names == [f"model-0000{part}-of-00003.gguf" for part in (1, 2, 3)]
    convert(files.checkpoint, tmp_path / "expected", dtype="f16")
    alone = tmp_path / "alone"
    alone.mkdir()
    for name in names:
        (tmp_path / name).rename(alone / name)
    for number, source in enumerate((alone / names[1], alone)):
        convert(source, tmp_path / f"found-{number}")
        assert weights(tmp_path / f"found-{number}") == weights(tmp_path / "expected")
    manifest = read_manifest(tmp_path / "found-0")
    assert sorted(manifest.source["files"]) == names
    assert manifest.name == "model"
    (alone / names[1]).unlink()
    with pytest.raises(NotACheckpoint, match=r"00002-of-00003.*is the download complete"):
        describe(alone)


def test_scaling_by_wavelength_is_recognised_by_its_factors(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    sizes = {**DENSE, "hidden_size": 256, "max_position_embeddings": 16384}
    model = tiny("llama", **sizes, rope_parameters=scaling)
    model.save_pretrained(tmp_path / "source")
    files = write_gguf(tmp_path / "source", tmp_path, "llama")
    plain = 500000.0 ** -(np.arange(32) / 32)
    factors = plain / model.model.rotary_emb.inv_freq.numpy()
    append_tensor(files.gguf, tmp_path / "scaled.gguf", "rope_freqs.weight", factors)
    assert describe(tmp_path / "scaled.gguf") == describe(tmp_path / "source", dtype="f32")
    append_tensor(files.gguf, tmp_path / "ones.gguf", "rope_freqs.weight", np.ones(32))
    assert describe(tmp_path / "ones.gguf") == describe(files.gguf)
    factors[20] *= 1.1
    append_tensor(files.gguf, tmp_path / "other.gguf", "rope_freqs.weight", factors)
    with pytest.raises(UnsupportedModel, match=r"rope_freqs\.weight holds factors"):
        describe(tmp_path / "other.gguf")
    (tmp_path / "both").mkdir()
    kinds = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 8.0}
    linear = write_gguf(tmp_path / "source", tmp_path / "both", "llama", metadata=kinds).gguf
    append_tensor(linear, tmp_path / "both.gguf", "rope_freqs.weight", plain * 8)
    with pytest.raises(UnsupportedModel, match="holds factors that nobody"):
        describe(tmp_path / "both.gguf")
    factors[20] /= 1.1
    append_tensor(linear, tmp_path / "set.gguf", "rope_freqs.weight", factors)
    with pytest.raises(UnsupportedModel, match=r"rope\.scaling\.type and rope_freqs.* both set"):
        describe(tmp_path / "set.gguf")
    config = json.loads((tmp_path / "source" / "config.json").read_text())
    of_kind = {"rope_type": "linear", "factor": 8.0, "rope_theta": 500000.0}
    config["rope_parameters"] = of_kind
    (tmp_path / "source" / "config.json").write_text(json.dumps(config))
    assert describe(linear) == describe(tmp_path / "source", dtype="f32")
    append_tensor(files.gguf, tmp_path / "two.gguf", "rope_freqs.weight", np.ones((2, 32)))
    with pytest.raises(UnsupportedModel, match="is no row of F32"):
        describe(tmp_path / "two.gguf")


def append_tensor(source: Path, path: Path, name: str, values: np.ndarray) -> None:
    """A copy of a file of F32 with one tensor more."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, str(reader.get_field("general.architecture").contents()))
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.asarray(tensor.data))
    writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.architecture": "gemma9"}, "general.architecture is 'gemma9'.*llama, qwen2"),
        ({"general.type": "adapter"}, "a GGUF of a 'adapter'"),
        ({"qwen3moe.attention.scale": 0.5}, r"qwen3moe\.attention\.scale is 0\.5; nobody"),
        ({"qwen3moe.expert_gating_func": 2}, "expert_gating_func is 2; supported: 1"),
        ({"qwen3moe.expert_shared_count": 1}, "expert_shared_count is 1; nobody"),
        ({"qwen3moe.rope.scaling.type": "longrope"}, "'longrope'; supported"),
        ({"qwen3moe.block_count": "two"}, "num_hidden_layers is 'two'"),
        ({"qwen3moe.block_count": [2, 3]}, "block_count differs between layers"),
        ({"qwen3moe.attention.value_length": 16}, "value_length is 16, but keys have 32"),
        ({"qwen3moe.rope.dimension_count": 8}, r"partial_rotary_factor is 0\.25"),
        ({"general.quantization_version": 1}, "quantization_version is 1"),
        ({"qwen3moe.embedding_length": None}, r"qwen3moe\.embedding_length is missing"),
        ({"qwen3moe.embedding_length": 32}, r"tensor .* has shape .*its metadata asks for"),
        ({"qwen3moe.block_count": 3}, "missing: layers.2.*its metadata|its metadata.*missing"),
        ({"qwen3moe.expert_count": 6}, r"missing: layers\.0\.mlp\.experts\.5"),
    ],
)
def test_metadata_that_nobody_here_knows(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    written("qwen3_moe", tmp_path, "F32")
    (tmp_path / "new").mkdir()
    path = write_gguf(tmp_path / "source", tmp_path / "new", "qwen3moe", metadata=change).gguf
    with pytest.raises(ModelError, match=message) as raised:
        describe(path)
    assert str(tmp_path) in str(raised.value)


def test_experts_that_are_not_stacked(tmp_path: Path) -> None:
    files = written("olmoe", tmp_path, "F32")
    name = "blk.0.ffn_gate_exps.weight"
    raw = files.gguf.read_bytes().replace(name.encode(), b"blk.9.ffn_gate_exps.weight")
    files.gguf.write_bytes(raw)
    append_tensor(files.gguf, tmp_path / "flat.gguf", name, np.ones((64, 64)))
    with pytest.raises(NotACheckpoint, match=r"has the shape \[64, 64\]; expected up to"):
        describe(tmp_path / "flat.gguf")


def test_what_manifests_say_of_rounding_may_be_anything() -> None:
    for odd in ({}, {"requantised": []}, {"requantised": 3}, {"requantised": [1]}):
        assert format_requantised(odd) == ""
    assert format_requantised({"requantised": ["Q4_K", "Q6_K"]}) == "requantised from Q4_K, Q6_K"


def test_what_the_metadata_say_of_positions_and_layers_alike(tmp_path: Path) -> None:
    saved("qwen3", tmp_path / "source")
    own = {
        "qwen3.rope.scaling.type": "yarn",
        "qwen3.rope.scaling.factor": 4.0,
        "qwen3.rope.scaling.original_context_length": 32,
        "qwen3.rope.scaling.finetuned": True,
        "qwen3.attention.head_count_kv": [2, 2],
    }
    files = write_gguf(tmp_path / "source", tmp_path, "qwen3", metadata=own)
    config = json.loads((files.checkpoint / "config.json").read_text())
    config["rope_parameters"] |= {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32
    }  # fmt: skip
    (files.checkpoint / "config.json").write_text(json.dumps(config))
    assert describe(files.gguf) == describe(files.checkpoint, dtype="f32")


def test_blocks_behind_the_layers_are_left_out(tmp_path: Path) -> None:
    """As published files of GLM-4.5 hold what predicts several tokens at once."""
    files = written("glm4_moe", tmp_path, "F32", metadata={"glm4moe.nextn_predict_layers": 0})
    (tmp_path / "more").mkdir()
    counts = {"glm4moe.block_count": 4, "glm4moe.nextn_predict_layers": 2}
    again = write_gguf(tmp_path / "source", tmp_path / "more", "glm4moe", metadata=counts)
    for number, name in enumerate(("blk.2.nextn.eh_proj.weight", "blk.3.attn_norm.weight")):
        append_tensor(again.gguf, tmp_path / f"{number}.gguf", name, np.ones((2, 64)))
        again = replace(again, gguf=tmp_path / f"{number}.gguf")
    assert describe(again.gguf) == describe(files.gguf)
    convert(again.gguf, tmp_path / "found")
    convert(files.checkpoint, tmp_path / "expected", dtype="f32")
    assert weights(tmp_path / "found") == weights(tmp_path / "expected")
    (tmp_path / "none").mkdir()
    counts = {"glm4moe.block_count": 2, "glm4moe.nextn_predict_layers": 2}
    lying = write_gguf(tmp_path / "source", tmp_path / "none", "glm4moe", metadata=counts)
    with pytest.raises(NotACheckpoint, match="nextn_predict_layers is 2, but there are 2 blocks"):
        describe(lying.gguf)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("glm4_moe", {"glm4moe.expert_gating_func": 1}, "expert_gating_func is 1; supported: 2"),
        ("glm4_moe", {"glm4moe.rope.dimension_sections": [4, 4, 4, 0]}, "dimension_sections"),
        ("smallthinker", {"smallthinker.expert_gating_func": 3}, "func is 3; supported: 1, 2"),
        (
            "smallthinker",
            {"smallthinker.attention.sliding_window_pattern": 3},
            "sliding_window_pattern is 3; supported: 4",
        ),
    ],
)
def test_metadata_of_other_routers_and_layers(
    tmp_path: Path, name: str, change: dict[str, Any], message: str
) -> None:
    files = written(name, tmp_path, "F32", metadata=change)
    with pytest.raises(UnsupportedModel, match=message):
        describe(files.gguf)
