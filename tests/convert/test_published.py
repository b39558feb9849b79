"""Predictors that others published: what is written, what is refused, and that nothing is left."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flashllm.convert.output.predictor_files import (
    check_activity,
    check_predictors,
    copy_predictors,
)
from flashllm.convert.predictors.published import import_published, write_published
from safetensors.numpy import load_file, save_file

from flashllm.errors import (
    CannotCreate,
    FlashllmError,
    LayoutError,
    NotACheckpoint,
    TensorMismatch,
    UsageError,
)
from flashllm.flash.raw_tensor import RawTensor
from flashllm.flash.safetensors_file import read_tensor_index
from flashllm.model.active_set_selectors import LowRank
from flashllm.spec import ModelSpec

SPEC = ModelSpec(
    n_layers=3, d_model=12, embed_dim=12, n_heads=3, n_kv_heads=3, head_dim=4, d_ffn=20,
    vocab_size=40, max_positions=16, position_offset=2, dtype="f32", norm_placement="pre",
    norm_affine=True, norm_eps=1e-5, final_norm=True, attention_bias=True, ffn_bias=True,
    tied_head=True, activation="relu",
)  # fmt: skip
RANKS = (5, 8, 1)
FILE = "predictors.safetensors"


def matrices(layer: int, rank: int | None = None, d_ffn: int = 20) -> tuple[Any, Any]:
    generator = np.random.default_rng(layer)
    rank = RANKS[layer] if rank is None else rank
    return (
        generator.standard_normal((rank, 12), dtype=np.float32),
        generator.standard_normal((d_ffn, rank), dtype=np.float32),
    )


def state(layer: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    down, up = (torch.from_numpy(values).to(dtype) for values in matrices(layer))
    return {"fc1.weight": down, "fc2.weight": up}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "published"
    folder.mkdir()
    for layer in range(3):
        torch.save(state(layer), folder / f"model_{layer}.pt")
    (folder / "README.md").write_text("not looked at")
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def refuse(source: Path, target: Path, error: type[FlashllmError], match: str) -> None:
    with pytest.raises(error, match=match) as caught:
        import_published(source, SPEC, target)
    assert type(caught.value) is error
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_was_published_is_what_is_written(
    source: Path, target: Path, dtype: torch.dtype
) -> None:
    for layer in range(3):
        torch.save(state(layer, dtype), source / f"model_{layer}.pt")
    (source / "config.json").write_text('{"sparse_threshold": -0.25, "more": 1}')

    import_published(source, SPEC, target)

    check_predictors(target / FILE, SPEC)
    assert [path.name for path in target.iterdir()] == [FILE]
    found = load_file(target / FILE)
    assert len(found) == 18
    for layer, rank in enumerate(RANKS):
        for leaf, key in (("down", "fc1.weight"), ("up", "fc2.weight")):
            expected = state(layer, dtype)[key].to(torch.float16).numpy()
            assert rank in found[f"layers.{layer}.{leaf}"].shape
            np.testing.assert_array_equal(found[f"layers.{layer}.{leaf}"], expected)
        assert not found[f"layers.{layer}.bias"].any()
        assert found[f"layers.{layer}.threshold"].tolist() == [-0.25]
        assert found[f"layers.{layer}.hidden_relu"].tolist() == [1.0]
        assert found[f"layers.{layer}.before_norm"].tolist() == [1.0]


def test_the_scores_are_those_of_the_published_network(source: Path, target: Path) -> None:
    import_published(source, SPEC, target)
    found = load_file(target / FILE)
    x = np.random.default_rng(9).standard_normal((50, 12)).astype(np.float32)
    for layer in range(3):
        network = torch.nn.Sequential(
            torch.nn.Linear(12, RANKS[layer], bias=False),
            torch.nn.ReLU(),
            torch.nn.Linear(RANKS[layer], 20, bias=False),
        )
        weights = state(layer)
        network[0].weight.data, network[2].weight.data = (
            weights["fc1.weight"],
            weights["fc2.weight"],
        )
        expected = network(torch.from_numpy(x)).detach().numpy()
        hidden = x @ found[f"layers.{layer}.down"].astype(np.float32).T
        hidden = np.maximum(hidden, 0) if found[f"layers.{layer}.hidden_relu"][0] else hidden
        scores = hidden @ found[f"layers.{layer}.up"].astype(np.float32).T
        np.testing.assert_allclose(scores, expected, atol=0.02)


@pytest.mark.parametrize("text", [None, "{}", '{"sparse_threshold": null}'])
def test_the_threshold_is_zero_where_nothing_is_said(
    source: Path, target: Path, text: str | None
) -> None:
    if text is not None:
        (source / "config.json").write_text(text)
    import_published(source, SPEC, target)
    assert load_file(target / FILE)["layers.0.threshold"].tolist() == [0.0]


def test_values_too_large_for_f16_stay_f32(target: Path) -> None:
    layers = [matrices(layer) for layer in range(3)]
    layers[1][1][3, 3] = 7e4
    write_published(iter(layers), 0.5, SPEC, target)
    index = read_tensor_index(target / FILE)
    assert [index[f"layers.{i}.down"].dtype for i in range(3)] == ["f16", "f32", "f16"]
    assert load_file(target / FILE)["layers.1.up"][3, 3] == np.float32(7e4)


def test_every_tensor_lies_where_its_type_may(target: Path) -> None:
    spec = replace(SPEC, d_ffn=21)
    layers = [matrices(layer, rank, 21) for layer, rank in enumerate((3, 4, 5))]
    write_published(layers, 0.0, spec, target)
    index = read_tensor_index(target / FILE)
    assert [index[f"layers.{i}.up"].dtype for i in range(3)] == ["f32", "f16", "f32"]
    assert all(r.offset % {"f16": 2, "f32": 4}[r.dtype] == 0 for r in index.values())
    for layer, (down, _) in enumerate(layers):
        stored = load_file(target / FILE)[f"layers.{layer}.down"]
        np.testing.assert_allclose(stored, down, rtol=1e-3)


def test_one_layer_at_a_time_is_asked_for(target: Path) -> None:
    alive = 0

    def layers() -> Any:
        nonlocal alive
        for layer in range(3):
            alive += 1
            yield matrices(layer)
            alive -= 1
            assert alive == 0
            assert len(list(target.glob(f".{FILE}.*.part"))) == 1

    write_published(layers(), 0.0, SPEC, target)
    assert [path.name for path in target.iterdir()] == [FILE]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"fc2.bias": torch.zeros(20)}, r"model_1.pt: fc2.bias is not expected.* without biases"),
        ({"fc1.weight": None}, r"model_1.pt: fc1.weight is missing"),
        (
            {"fc1.weight": torch.zeros(8, 13)},
            r"fc1.weight is \[8, 13\]; this model needs \[8, 12\]",
        ),
        ({"fc1.weight": torch.zeros(12)}, r"fc1.weight is \[12\]; this model needs \[12, 12\]"),
        ({"fc1.weight": torch.zeros(0, 12)}, r"fc1.weight is \[0, 12\]; .* \[rank, 12\]"),
        ({"fc1.weight": torch.tensor(1.0)}, r"fc1.weight is \[\]"),
        (
            {"fc2.weight": torch.zeros(20, 7)},
            r"fc2.weight is \[20, 7\]; this model needs \[20, 8\]",
        ),
        ({"fc2.weight": torch.zeros(21, 8)}, r"fc2.weight is \[21, 8\]"),
        ({"fc2.weight": torch.zeros(20, 8, dtype=torch.int64)}, "fc2.weight is of type int64"),
        ({"fc2.weight": torch.full((20, 8), float("nan"))}, r"fc2.weight of .*model_1.pt.* NaN"),
        ({"fc1.weight": torch.full((8, 12), float("inf"))}, r"fc1.weight of .*model_1.pt.* inf"),
        ({"fc2.weight": torch.zeros(8, 20).T}, r"model_1.pt: fc2.weight: not a dense, contiguous"),
        ({"fc2.weight": torch.zeros(20, 8).to_sparse()}, r"fc2.weight: not a dense"),
    ],
)
def test_tensors_of_another_model(
    source: Path, target: Path, change: dict[str, Any], match: str
) -> None:
    values = {**state(1), **change}
    torch.save({k: v for k, v in values.items() if v is not None}, source / "model_1.pt")
    refuse(source, target, TensorMismatch, match)


class Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("/tmp/flashllm-must-not-be-made",))


def save_code(path: Path) -> None:
    torch.save({**state(1), "fc3": Code()}, path)


def save_plain_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps({"fc1.weight": 1}))


def save_truncated(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def save_list(path: Path) -> None:
    torch.save([torch.zeros(2)], path)


def save_number(path: Path) -> None:
    torch.save({"fc1.weight": 3, "fc2.weight": torch.zeros(2)}, path)


def save_archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", b"not a pickle")


def save_nothing(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    "save",
    [save_code, save_plain_pickle, save_truncated, save_list, save_number, save_archive,
     save_nothing],
)  # fmt: skip
def test_files_that_hold_something_else(
    source: Path, target: Path, save: Callable[[Path], None]
) -> None:
    save(source / "model_1.pt")
    refuse(source, target, NotACheckpoint, r"model_1\.pt")
    assert not Path("/tmp/flashllm-must-not-be-made").exists()


def test_layers_missing_and_too_many(source: Path, target: Path) -> None:
    torch.save(state(0), source / "model_3.pt")
    refuse(source, target, UsageError, r"model_3.pt: does not belong .* model_0.pt to model_2.pt")
    (source / "model_3.pt").rename(source / "model_02.pt")
    refuse(source, target, UsageError, r"model_02.pt: does not belong")
    (source / "model_02.pt").unlink()
    (source / "model_1.pt").unlink()
    refuse(source, target, UsageError, r"model_1.pt: missing; 3 layers need")
    refuse(source / "absent", target, UsageError, "no such folder of predictors")


def test_links_that_lead_out_of_the_folder(source: Path, target: Path, tmp_path: Path) -> None:
    (source / "model_1.pt").rename(tmp_path / "elsewhere.pt")
    (source / "model_1.pt").symlink_to(tmp_path / "elsewhere.pt")
    refuse(source, target, NotACheckpoint, r"model_1.pt: a link that leads out")
    (source / "model_1.pt").unlink()
    (source / "model_1.pt").symlink_to(tmp_path / "absent.pt")
    refuse(source, target, NotACheckpoint, r"model_1.pt: missing")
    (source / "model_1.pt").unlink()
    torch.save(state(1), source / "model_1.pt")
    (tmp_path / "config.json").write_text('{"sparse_threshold": 1}')
    (source / "config.json").symlink_to(tmp_path / "config.json")
    refuse(source, target, NotACheckpoint, r"config.json: a link that leads out")


def test_a_snapshot_of_the_hub_is_links_into_its_blobs(
    source: Path, target: Path, tmp_path: Path
) -> None:
    home = tmp_path / "models--x--y"
    (home / "snapshots").mkdir(parents=True)
    source.rename(home / "blobs")
    snapshot = home / "snapshots" / "abc"
    snapshot.mkdir()
    for layer in range(3):
        (snapshot / f"model_{layer}.pt").symlink_to(home / "blobs" / f"model_{layer}.pt")
    import_published(snapshot, SPEC, target)
    check_predictors(target / FILE, SPEC)


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ('{"sparse_threshold": "0.5"}', UsageError, "sparse_threshold is 0.5; expected a number"),
        ('{"sparse_threshold": true}', UsageError, "sparse_threshold is True"),
        ('{"sparse_threshold": 1e999}', UsageError, "sparse_threshold is inf"),
        ('{"sparse_threshold": 1e300}', UsageError, "sparse_threshold is 1e"),
        ('{"sparse_threshold": NaN}', NotACheckpoint, "NaN"),
        ('{"sparse_threshold": ', NotACheckpoint, "not valid JSON"),
        ("[]", NotACheckpoint, "expected a JSON object"),
        (" " * (2 << 20), NotACheckpoint, "at most"),
    ],
)
def test_a_threshold_that_is_none(
    source: Path, target: Path, text: str, error: type[FlashllmError], match: str
) -> None:
    (source / "config.json").write_text(text)
    refuse(source, target, error, match)


def test_a_model_that_is_never_zero_has_no_use_for_them(source: Path, target: Path) -> None:
    dense = replace(SPEC, activation="silu", gate="bundled", rows_per_neuron=3)
    with pytest.raises(UsageError, match="silu, is never zero"):
        import_published(source, dense, target)
    assert list(target.iterdir()) == []


@pytest.mark.parametrize(
    ("layers", "match"),
    [
        ([matrices(0)], "predictors of 1 layers; the model has 3"),
        ([matrices(0)] * 4, "predictors of 4 layers"),
        (
            [matrices(0), (matrices(0)[0], matrices(1)[1])],
            r"layer 1: fc2 is \[20, 8\]; .* \[20, 5\]",
        ),
        ([(matrices(0)[0] * np.float32(np.nan), matrices(0)[1])], "layer 0: fc1 holds NaN"),
    ],
)
def test_matrices_that_do_not_fit(target: Path, layers: Any, match: str) -> None:
    with pytest.raises(TensorMismatch, match=match):
        write_published(layers, 0.0, SPEC, target)
    assert list(target.iterdir()) == []


def test_interrupted_in_between_leaves_nothing(target: Path) -> None:
    def layers() -> Any:
        yield matrices(0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_published(layers(), 0.0, SPEC, target)
    assert list(target.iterdir()) == []


def test_a_place_that_cannot_be_written(source: Path, tmp_path: Path) -> None:
    with pytest.raises(CannotCreate, match="cannot be written"):
        import_published(source, SPEC, tmp_path / "absent")


@pytest.mark.parametrize("switch", ["hidden_relu", "before_norm"])
def test_switches_are_optional_and_zero_or_one(source: Path, target: Path, switch: str) -> None:
    import_published(source, SPEC, target)
    found = load_file(target / FILE)
    without = {name: values for name, values in found.items() if switch not in name}
    save_file(without, target / FILE)
    check_predictors(target / FILE, SPEC)
    for value, dtype in ((0.5, np.float32), (np.nan, np.float32), (1, np.float16)):
        save_file({**found, f"layers.1.{switch}": np.array([value], dtype)}, target / FILE)
        with pytest.raises(LayoutError, match=f"{switch} is"):
            check_predictors(target / FILE, SPEC)
    save_file({**found, f"layers.3.{switch}": np.ones(1, np.float32)}, target / FILE)
    with pytest.raises(LayoutError, match=f"layers.3.{switch} is missing or not expected"):
        check_predictors(target / FILE, SPEC)


def test_a_record_of_activity_is_copied_where_there_is_one(
    source: Path, target: Path, tmp_path: Path
) -> None:
    import_published(source, SPEC, target)
    model = tmp_path / "model"
    model.mkdir()
    copy_predictors(target / FILE, model, SPEC)
    assert [path.name for path in model.iterdir()] == [FILE]
    (target / "activity.json").write_text(json.dumps({"layers": [{}] * 3}))
    copy_predictors(target / FILE, model, SPEC)
    assert sorted(path.name for path in model.iterdir()) == ["activity.json", FILE]


@pytest.mark.parametrize(
    ("activity", "fits"),
    [
        ({"layers": [{}] * 3}, True),
        ({"layers": [{}] * 2}, False),
        ({"oracle": {"slots_needed": [[1, 2, 3], [2, 3, 4]]}}, True),
        ({"oracle": {"slots_needed": [[1, 2, 3], [2, 3]]}}, False),
        ({"oracle": {"slots_needed": []}}, False),
        ({"oracle": 3}, False),
        ({}, False),
    ],
)
def test_a_record_of_activity_is_of_as_many_layers(
    tmp_path: Path, activity: dict[str, Any], fits: bool
) -> None:
    path = tmp_path / "activity.json"
    path.write_text(json.dumps(activity))
    if fits:
        check_activity(path, SPEC)
        return
    with pytest.raises(LayoutError, match="does not describe 3 layers"):
        check_activity(path, SPEC)


@pytest.mark.parametrize("leaf", ["up", "down", "bias", "threshold"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_predictors_that_are_no_numbers(
    source: Path, target: Path, leaf: str, value: float
) -> None:
    """They would leave neurons out in silence: here and where the model is opened."""
    import_published(source, SPEC, target)
    found = load_file(target / FILE)
    found[f"layers.1.{leaf}"].reshape(-1)[-1] = value
    save_file(found, target / FILE)
    with pytest.raises(LayoutError, match=f"layers.1.{leaf} holds NaN or infinity"):
        check_predictors(target / FILE, SPEC)
    dtypes = {"float16": "f16", "float32": "f32"}
    tensors = {
        name: RawTensor(
            np.ascontiguousarray(values).reshape(-1).view(np.uint8),
            dtypes[str(values.dtype)],
            values.shape,
        )
        for name, values in found.items()
    }
    LowRank.of(tensors, 0, SPEC)
    with pytest.raises(TensorMismatch, match="layer 1 holds NaN or infinity"):
        LowRank.of(tensors, 1, SPEC)
