"""Converting to int8, int4 and mxfp4: what lies where, byte for byte, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashllm.convert import convert, convert_shards, verify
from safetensors.numpy import load_file, save_file

from flashllm.cli.main import main
from flashllm.core.numpy_twin import kernels
from flashllm.dtypes import row_bytes
from flashllm.engine.loading import load_decoder
from flashllm.errors import LayoutError, TensorMismatch, UsageError
from flashllm.flash.layout import read_header
from flashllm.flash.manifest import read_manifest
from flashllm.flash.raw_tensor import RawTensor, all_finite
from flashllm.flash.safetensors_file import read_tensor_index
from flashllm.flash.store import Store
from flashllm.flash.tensor_table import check_resident
from tests.support.checkpoints import (
    CONFIG,
    Tensors,
    all_bytes,
    random_tensors,
    write_checkpoint,
)
from tests.support.dequantised import bundled, dequantised
from tests.support.encodings import decode
from tests.support.local_shards import LocalShards
from tests.tools.test_convert import bundle, our_name

WIDE: dict[str, Any] = {"hidden_size": 36, "word_embed_proj_dim": 36, "ffn_dim": 33}
"""36 columns are a group and a part of one."""
Q = "model.decoder.layers.1.self_attn.q_proj.weight"
UP = "model.decoder.layers.0.fc1.weight"
DOWN = "model.decoder.layers.1.fc2.weight"
WIDTH, D_FFN = CONFIG["hidden_size"], CONFIG["ffn_dim"]


def encoded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Rows [n, row_bytes] as the numpy twin encodes them."""
    rows = np.ascontiguousarray(values, np.float32)
    nbytes = kernels.row_bytes(dtype, rows.shape[1])
    out = np.empty(len(rows) * nbytes, np.uint8)
    kernels.Kernels().encode_rows(rows.reshape(-1), rows.shape[1], dtype, out)
    return out.reshape(len(rows), nbytes)


@pytest.mark.parametrize("dtype", ["int8", "int4", "mxfp4"])
@pytest.mark.parametrize("source_dtype", [np.float32, np.float16])
@pytest.mark.parametrize("changes", [{}, WIDE], ids=["narrow", "wide"])
def test_every_row_is_where_and_what_it_should_be(
    tmp_path: Path, dtype: str, source_dtype: type, changes: dict[str, Any]
) -> None:
    config = {**CONFIG, **changes}
    tensors = {n: t.astype(source_dtype) for n, t in random_tensors(config).items()}
    source = write_checkpoint(tmp_path / "source", tensors=tensors, shards=2, **changes)

    convert(source, tmp_path / "out", dtype=dtype)

    resident = load_file(tmp_path / "out" / "resident.safetensors")
    for name, values in tensors.items():
        if name.endswith(("fc1.weight", "fc2.weight")):
            continue
        found = resident.pop(our_name(name))
        if values.ndim == 1:
            expected = values.astype(np.float32)
        elif "positions" in name:
            expected = values.astype(np.float16)
        else:
            expected = encoded(values, dtype)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected, err_msg=name)
    assert not resident
    for layer in range(config["num_hidden_layers"]):
        up = encoded(tensors[f"model.decoder.layers.{layer}.fc1.weight"], dtype)
        down = encoded(tensors[f"model.decoder.layers.{layer}.fc2.weight"].T, dtype)
        for index in range(config["ffn_dim"]):
            expected_bytes = up[index].tobytes() + down[index].tobytes()
            assert bundle(tmp_path / "out", layer, index) == expected_bytes, (layer, index)
    assert verify(tmp_path / "out").ok


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_rounding_is_at_most_half_a_step(tmp_path: Path, dtype: str) -> None:
    """In int4 the ends of a group may be cut off by one step, where that errs less in sum."""
    tensors = random_tensors(CONFIG)
    convert(write_checkpoint(tmp_path / "source", tensors=tensors), tmp_path / "out", dtype=dtype)
    found = bundled(tmp_path / "out")["layers.0.ffn.up"]
    step = np.abs(tensors[UP]).max(axis=1, keepdims=True) / {"int8": 127, "int4": 7}[dtype]
    error = np.abs(found - tensors[UP]) / step
    assert error.max() < {"int8": 0.51, "int4": 1.7}[dtype]
    assert np.sqrt((error**2).mean()) < 0.35


@pytest.mark.parametrize("dtype", ["int8", "int4", "mxfp4"])
def test_the_same_checkpoint_gives_the_same_bytes(tmp_path: Path, dtype: str) -> None:
    source = write_checkpoint(tmp_path / "source", **WIDE)
    for name in ("first", "second"):
        convert(source, tmp_path / name, dtype=dtype)
    assert all_bytes(tmp_path / "first") == all_bytes(tmp_path / "second")


@pytest.mark.parametrize(
    ("dtype", "resident", "matrices", "positions"),
    [("int4", "int8", "U8", "F16"), ("int8", "f32", "F32", "F32"), ("f16", "int4", "U8", "F16")],
)
def test_encodings_apart(
    tmp_path: Path, dtype: str, resident: str, matrices: str, positions: str
) -> None:
    tensors = random_tensors(CONFIG)
    source = write_checkpoint(tmp_path / "source", tensors=tensors)
    convert(source, tmp_path / "out", dtype=dtype, resident_dtype=resident)
    spec = read_manifest(tmp_path / "out").spec
    assert (spec.dtype, spec.resident_dtype) == (dtype, resident)
    assert read_header(tmp_path / "out" / "ffn.bundles").dtype == dtype
    names = {"U8": np.uint8, "F16": np.float16, "F32": np.float32}
    found = load_file(tmp_path / "out" / "resident.safetensors")
    assert found["layers.1.attn.q.weight"].dtype == names[matrices]
    assert found["embed.positions"].dtype == names[positions]
    values = dequantised(tmp_path / "out")["layers.1.attn.q.weight"]
    assert 0 <= np.abs(values - tensors[Q]).max() < (0.5 if resident == "int4" else 0.05)
    with Store(tmp_path / "out") as store:
        for name, tensor in store.load_resident(direct=False).items():
            np.testing.assert_array_equal(
                tensor.floats(), dequantised(tmp_path / "out")[name].astype(np.float32)
            )


def test_the_same_encoding_twice_is_said_once(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    convert(source, tmp_path / "out", dtype="int8", resident_dtype="int8")
    assert read_manifest(tmp_path / "out").spec.resident_dtype is None
    assert "resident_dtype" not in read_manifest(tmp_path / "out").spec.to_json()


@pytest.mark.parametrize("dtype", ["f32", "int8", "int4", "mxfp4"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("name", "row"), [(UP, 7), (DOWN, 3), (Q, 11)])
def test_what_is_no_number_is_named_with_its_row(
    tmp_path: Path, name: str, row: int, value: float, dtype: str
) -> None:
    tensors = random_tensors(CONFIG)
    tensors[name][row, 5] = value
    source = write_checkpoint(tmp_path / "source", tensors=tensors)
    place = rf"{name}: holds NaN or infinity in row {row}, in model\.safetensors"
    with pytest.raises(TensorMismatch, match=place):
        convert(source, tmp_path / "out", dtype=dtype)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("name", [UP, DOWN, Q])
def test_what_no_scale_reaches_is_refused(tmp_path: Path, name: str, dtype: str) -> None:
    tensors = random_tensors(CONFIG)
    tensors[name][2, 1] = 1e8
    source = write_checkpoint(tmp_path / "source", tensors=tensors)
    with pytest.raises(TensorMismatch, match=rf"{name}: holds values too large for {dtype}; conv"):
        convert(source, tmp_path / "out", dtype=dtype)


@pytest.mark.parametrize(("dtype", "most"), [("int8", 7e-6), ("int4", 4e-7)])
@pytest.mark.parametrize("name", [UP, DOWN, Q])
@pytest.mark.parametrize("shards", [1, 2])
def test_a_tensor_that_would_become_zero_is_refused(
    tmp_path: Path, name: str, dtype: str, most: float, shards: int
) -> None:
    tensors = random_tensors(CONFIG)
    for scale in (1e-8, most):
        tensors[name] = np.clip(random_tensors(CONFIG)[name] * 50, -1, 1) * np.float32(scale)
        source = write_checkpoint(tmp_path / f"source {scale}", tensors=tensors, shards=shards)
        words = f"tensor {name}: all its weights are too small for {dtype}, under about "
        with pytest.raises(TensorMismatch, match=f"{words}.* convert with --dtype bf16 or f32"):
            convert(source, tmp_path / "out", dtype=dtype)
        with pytest.raises(TensorMismatch, match=words):
            convert_shards(LocalShards(source), tmp_path / "out", dtype=dtype)
        shutil.rmtree(tmp_path / "out.partial-pull")
        assert not (tmp_path / "out").exists()
        convert(source, tmp_path / "kept", dtype="f32")  # kept there
        shutil.rmtree(tmp_path / "kept")


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_small_weights_in_a_tensor_of_usual_ones_are_only_rounded(
    tmp_path: Path, dtype: str
) -> None:
    """So are rows of tokens that were never trained, and a tensor of zeros."""
    tensors = random_tensors(CONFIG)
    tensors[UP][1:] = 1e-9
    tensors[Q][:] = 0
    tensors["model.decoder.embed_tokens.weight"][5:] = 1e-16
    convert(write_checkpoint(tmp_path / "source", tensors=tensors), tmp_path / "out", dtype=dtype)
    found = dequantised(tmp_path / "out")
    assert np.abs(found["layers.0.ffn.up"][1:] - tensors[UP][1:]).max() < 2.0**-25
    assert not found[our_name(Q)].any()


def test_no_weight_is_too_small_or_too_large_for_mxfp4(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    tensors[Q] *= np.float32(1e-30)
    tensors[UP][2, 1] = 3e38
    convert(write_checkpoint(tmp_path / "source", tensors=tensors), tmp_path / "out", dtype="mxfp4")
    found = dequantised(tmp_path / "out")
    for name, values in ((our_name(Q), tensors[Q]), ("layers.0.ffn.up", tensors[UP])):
        most = np.abs(values).max(axis=1, keepdims=True)
        assert (np.abs(found[name] - values) <= most / 4).all()
        assert (np.abs(found[name]).max(axis=1, keepdims=True) >= most / 2).all()


def test_files_of_another_encoding_do_not_open(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    for dtype in ("f16", "int8", "int4", "mxfp4"):
        convert(source, tmp_path / dtype, dtype=dtype)
    for ours, theirs in (("int8", "int4"), ("f16", "int8"), ("int4", "mxfp4"), ("mxfp4", "f16")):
        spec = read_manifest(tmp_path / ours).spec
        path = tmp_path / theirs / "resident.safetensors"
        with pytest.raises(LayoutError, match="the manifest asks for"):
            check_resident(read_tensor_index(path), spec, path)
        bundles = (tmp_path / theirs / "ffn.bundles").read_bytes()
        kept = (tmp_path / ours / "ffn.bundles").read_bytes()
        (tmp_path / ours / "ffn.bundles").write_bytes(bundles)
        with pytest.raises(LayoutError, match=f"dtype is {theirs}, but the manifest says {ours}"):
            Store(tmp_path / ours)
        (tmp_path / ours / "ffn.bundles").write_bytes(kept)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("value", [0.0, 0.25, -3.0])
def test_constant_groups(tmp_path: Path, dtype: str, value: float) -> None:
    tensors = random_tensors(CONFIG)
    tensors[UP][:] = value
    source = write_checkpoint(tmp_path / "source", tensors=tensors)
    convert(source, tmp_path / "out", dtype=dtype)
    found = bundled(tmp_path / "out")["layers.0.ffn.up"]
    np.testing.assert_allclose(found, value, rtol=1e-3)


@pytest.mark.parametrize("wish", [{"dtype": "int3"}, {"resident_dtype": "q8"},
                                  {"predictor_dtype": "bf16"}])  # fmt: skip
def test_encodings_that_there_are_not(tmp_path: Path, wish: dict[str, str]) -> None:
    source = write_checkpoint(tmp_path / "source")
    with pytest.raises(UsageError, match="expected one of f"):
        convert(source, tmp_path / "out", **wish)


@pytest.mark.parametrize("option", ["--dtype", "--resident-dtype", "--predictor-dtype"])
def test_the_command_line_names_the_encodings(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(tmp_path), str(tmp_path / "out"), option, "int3"]) == 2
    assert "int8" in capsys.readouterr().err


def predictors(path: Path, rank: int = 5, layers: int = 2) -> Tensors:
    generator = np.random.default_rng(3)
    tensors: Tensors = {}
    for layer in range(layers):
        name = f"layers.{layer}"
        tensors[f"{name}.down"] = generator.standard_normal((rank, WIDTH)).astype(np.float16)
        tensors[f"{name}.up"] = generator.standard_normal((D_FFN, rank)).astype(np.float16)
        tensors[f"{name}.bias"] = generator.standard_normal(D_FFN).astype(np.float32)
        tensors[f"{name}.threshold"] = np.zeros(1, np.float32)
    save_file(tensors, path)
    return tensors


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_predictors_in_groups(tmp_path: Path, dtype: str) -> None:
    tensors = predictors(tmp_path / "predictors.safetensors")
    source = write_checkpoint(tmp_path / "source")
    wish = {"predictors": tmp_path / "predictors.safetensors", "predictor_dtype": dtype}
    convert(source, tmp_path / "out", **wish)
    assert verify(tmp_path / "out").ok
    stored = load_file(tmp_path / "out" / "predictors.safetensors")
    with Store(tmp_path / "out") as store:
        assert store.predictor_dtype() == dtype
        read = store.load_predictors(direct=False)
    assert read is not None
    for name, values in tensors.items():
        if values.ndim == 1:
            np.testing.assert_array_equal(stored[name], values)
            continue
        assert stored[name].shape == (len(values), row_bytes(dtype, values.shape[1]))
        np.testing.assert_array_equal(stored[name], encoded(values, dtype))
        assert read[name].shape == values.shape
        expected = decode(stored[name].reshape(-1), dtype, values.shape[1])
        np.testing.assert_array_equal(read[name].floats(), expected.astype(np.float32))
    # What is rounded already is taken over as it is, and rounded again by nobody.
    again = {"predictors": tmp_path / "out" / "predictors.safetensors"}
    for more in ({}, {"predictor_dtype": dtype}):
        convert(source, tmp_path / f"again{len(more)}", **again, **more)
        found = (tmp_path / f"again{len(more)}" / "predictors.safetensors").read_bytes()
        assert found == (tmp_path / "out" / "predictors.safetensors").read_bytes()
    with pytest.raises(UsageError, match=f"the predictors are in {dtype} already"):
        convert(source, tmp_path / "f16", **again, predictor_dtype="f16")


def test_predictors_in_f32_become_f16(tmp_path: Path) -> None:
    tensors = predictors(tmp_path / "f16.safetensors")
    wide = {name: values.astype(np.float32) for name, values in tensors.items()}
    save_file(wide, tmp_path / "predictors.safetensors")
    source = write_checkpoint(tmp_path / "source")
    wish = {"predictors": tmp_path / "predictors.safetensors", "predictor_dtype": "f16"}
    convert(source, tmp_path / "out", **wish)
    assert verify(tmp_path / "out").ok
    stored = load_file(tmp_path / "out" / "predictors.safetensors")
    for name, values in tensors.items():
        assert stored[name].dtype == values.dtype
        np.testing.assert_array_equal(stored[name], values)


def test_predictors_need_predictors(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    with pytest.raises(UsageError, match="--predictor-dtype int8: there are to be no predictors"):
        convert(source, tmp_path / "out", predictor_dtype="int8")


@pytest.mark.parametrize("leaf", ["down", "up"])
def test_predictors_whose_rows_fit_no_encoding(tmp_path: Path, leaf: str) -> None:
    tensors = predictors(tmp_path / "predictors.safetensors")
    name = f"layers.1.{leaf}"
    tensors[name] = np.zeros((len(tensors[name]), 33), np.uint8)
    save_file(tensors, tmp_path / "predictors.safetensors")
    source = write_checkpoint(tmp_path / "source")
    with pytest.raises(LayoutError, match=rf"{name} is u8 \[\d+, 33\]"):
        convert(source, tmp_path / "out", predictors=tmp_path / "predictors.safetensors")


def test_predictors_without_a_rank(tmp_path: Path) -> None:
    tensors = predictors(tmp_path / "predictors.safetensors")
    tensors["layers.1.down"] = np.zeros((0, WIDTH), np.uint8)
    tensors["layers.1.up"] = np.zeros((D_FFN, 0), np.uint8)
    save_file(tensors, tmp_path / "predictors.safetensors")
    source = write_checkpoint(tmp_path / "source")
    with pytest.raises(LayoutError, match=r"down is u8 \[0, \d+\]; .* \[rank above 0, \d+\]"):
        convert(source, tmp_path / "out", predictors=tmp_path / "predictors.safetensors")


def test_a_scale_that_is_no_number_is_found(tmp_path: Path) -> None:
    tensors = predictors(tmp_path / "predictors.safetensors")
    rows = encoded(tensors["layers.0.up"], "int8")
    rows[4, -2:] = (0x00, 0x7C)  # infinity in f16
    tensors["layers.0.up"] = rows
    save_file(tensors, tmp_path / "predictors.safetensors")
    source = write_checkpoint(tmp_path / "source")
    with pytest.raises(LayoutError, match=r"layers\.0\.up holds NaN or infinity"):
        convert(source, tmp_path / "out", predictors=tmp_path / "predictors.safetensors")


@pytest.mark.parametrize(("scale", "finite"), [(0, True), (252, True), (253, False), (255, False)])
def test_scales_of_mxfp4_with_which_all_numbers_are_finite(scale: int, finite: bool) -> None:
    rows = np.full((3, 2 * 17), 0x77, np.uint8)  # sixes
    rows[:, -2:] = 127
    rows[2, -1] = scale
    assert all_finite(rows.reshape(-1), "mxfp4", 40) == finite
    assert np.isfinite(RawTensor(rows.reshape(-1), "mxfp4", (3, 40)).floats()).all() == finite


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize(("leaf", "columns"), [("down", WIDTH), ("up", 5)])
def test_a_scale_that_is_no_number_does_not_open(
    tmp_path: Path, dtype: str, leaf: str, columns: int
) -> None:
    """It would leave neurons out in silence."""
    predictors(tmp_path / "predictors.safetensors")
    wish = {"predictors": tmp_path / "predictors.safetensors", "predictor_dtype": dtype}
    convert(write_checkpoint(tmp_path / "source"), tmp_path / "out", **wish)
    load_decoder(tmp_path / "out")[2].close()
    path = tmp_path / "out" / "predictors.safetensors"
    raw = bytearray(path.read_bytes())
    scale = read_tensor_index(path)[f"layers.1.{leaf}"].offset + row_bytes(dtype, columns) - 2
    raw[scale : scale + 2] = b"\x00\xfe"  # NaN in f16
    path.write_bytes(raw)
    with pytest.raises(TensorMismatch, match="layer 1 holds NaN or infinity"):
        load_decoder(tmp_path / "out", verify="off")
