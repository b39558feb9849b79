"""What goes wrong with files while a model is opened or running ends in one of our errors."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flashllm.engine.local import load_info, open_model
from flashllm.errors import FlashllmError, LayoutError, ModelError, ModelTruncated, UsageError

PROMPT = [5, 17, 40, 8, 61, 33]


@pytest.fixture
def copy(sparse_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sparse_model, tmp_path / "copy"))


def cut(name: str, share: float) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        size = (directory / name).stat().st_size
        os.truncate(directory / name, int(size * share))

    return damage


def remove(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def overwrite(name: str, at: int, with_bytes: bytes) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        with open(directory / name, "r+b") as file:
            file.seek(at)
            file.write(with_bytes)

    return damage


def replace_file(name: str, content: bytes) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        (directory / name).write_bytes(content)

    return damage


DAMAGES = {
    "no manifest: half-converted": remove("manifest.json"),
    "no bundles": remove("ffn.bundles"),
    "no resident weights": remove("resident.safetensors"),
    "manifest cut": cut("manifest.json", 0.5),
    "manifest changed": overwrite("manifest.json", 40, b"#"),
    "bundles cut": cut("ffn.bundles", 0.9),
    "header of the bundles changed": overwrite("ffn.bundles", 20, b"\xff"),
    "resident cut": cut("resident.safetensors", 0.9),
    "resident header length lies": overwrite("resident.safetensors", 0, b"\xff" * 8),
    "predictors cut": cut("predictors.safetensors", 0.5),
    "activity is no JSON": overwrite("activity.json", 0, b"["),
    "activity is deep": replace_file("activity.json", b'{"windows": ' + b"[" * 100_000),
    "windows without end": replace_file("activity.json", b'{"windows": [1e999], "oracle": {}}'),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_model_does_not_open(copy: Path, damage: Callable[[Path], None]) -> None:
    damage(copy)
    with pytest.raises(FlashllmError) as caught, open_model(copy):
        pass
    assert isinstance(caught.value, ModelError) or caught.value.exit_code == 66
    assert str(copy) in str(caught.value)


def test_a_file_of_another_model_does_not_fit(copy: Path) -> None:
    path = copy / "activity.json"
    activity = json.loads(path.read_text())
    activity["predicted"]["slots_needed"][0].append(1)
    path.write_text(json.dumps(activity))
    with pytest.raises(ModelError), open_model(copy):
        pass


def test_truncated_while_open(copy: Path) -> None:
    with open_model(copy, window=1) as model:
        generation = model.generate(PROMPT, max_tokens=100)
        next(generation)
        os.truncate(copy / "ffn.bundles", 1 << 14)
        with pytest.raises(ModelTruncated, match=r"ffn\.bundles, layer 0.*flashllm verify"):
            list(generation)
        with pytest.raises(ModelTruncated):
            list(model.generate(PROMPT, max_tokens=2))


def test_the_engine_goes_on_when_the_file_is_whole_again(copy: Path) -> None:
    whole = (copy / "ffn.bundles").read_bytes()
    with open_model(copy) as model:
        expected = [token.id for token in model.generate(PROMPT, max_tokens=20)]
        os.truncate(copy / "ffn.bundles", 1 << 14)
        model.forget()
        with pytest.raises(ModelTruncated):
            list(model.generate(PROMPT, max_tokens=20))
        with open(copy / "ffn.bundles", "r+b") as file:
            file.write(whole)
        assert [token.id for token in model.generate(PROMPT, max_tokens=20)] == expected


def test_replaced_while_open_keeps_the_old_file(copy: Path) -> None:
    with open_model(copy) as model:
        expected = [token.id for token in model.generate(PROMPT, max_tokens=20)]
        (copy / "new").write_bytes(b"\0" * (copy / "ffn.bundles").stat().st_size)
        os.replace(copy / "new", copy / "ffn.bundles")
        assert [token.id for token in model.generate(PROMPT, max_tokens=20)] == expected


def test_predicted_without_predictors(tmp_path: Path, sparse_model: Path) -> None:
    from flashllm.convert import convert

    convert(sparse_model.parent / "source", tmp_path / "plain")
    assert not load_info(tmp_path / "plain").has_predictors
    with pytest.raises(UsageError, match="--predictors train"):
        open_model(tmp_path / "plain", select="predicted")
    with open_model(tmp_path / "plain") as model:
        assert model.plan.select == "all"
    with pytest.raises(LayoutError):
        convert(
            sparse_model.parent / "source",
            tmp_path / "wrong",
            predictors=sparse_model / "resident.safetensors",
        )
    assert not (tmp_path / "wrong").exists()
