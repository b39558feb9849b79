"""What is found before a model is opened, and that opening says the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flashllm.engine.local import open_model
from flashllm.errors import (
    FlashllmError,
    LayoutError,
    MemoryCeilingTooSmall,
    ModelNotFound,
    ModelTruncated,
    UsageError,
)
from flashllm.library.models import ModelChoice
from flashllm.library.open_check import can_chat, check_openable
from flashllm.options import ModelOptions
from flashllm.units import MIB

GOLDEN = Path(__file__).parents[1] / "flash" / "golden" / "converted"
INTERPRETER = 200 * MIB


@pytest.fixture
def copy(demo: Path, tmp_path: Path) -> Path:
    shutil.copytree(demo, tmp_path / "copy")
    return tmp_path / "copy"


def error_of(directory: Path, options: ModelOptions) -> FlashllmError:
    with pytest.raises(FlashllmError) as caught:
        check_openable(ModelChoice(directory), options, INTERPRETER)
    return caught.value


def test_what_opens_passes(copy: Path) -> None:
    check_openable(ModelChoice(copy), ModelOptions(), INTERPRETER)
    check_openable(ModelChoice(copy), ModelOptions(memory=1 << 30, context=256), INTERPRETER)
    assert can_chat(copy)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (ModelOptions(memory=210 * MIB), MemoryCeilingTooSmall),
        (ModelOptions(memory=1 << 30, application_bytes=1 << 30), MemoryCeilingTooSmall),
        (ModelOptions(context=1 << 20), UsageError),
        (ModelOptions(select="gate"), UsageError),
        (ModelOptions(profile="/nowhere/at/all.json"), FlashllmError),
    ],
)
def test_options_that_do_not_fit_are_found(
    copy: Path, options: ModelOptions, kind: type[FlashllmError]
) -> None:
    found = error_of(copy, options)
    assert isinstance(found, kind)
    with pytest.raises(type(found)) as caught:
        open_model(copy, options)
    if not isinstance(found, MemoryCeilingTooSmall):  # whose figures are of another process
        assert str(caught.value) == str(found)


def test_damage_is_found(copy: Path) -> None:
    bundles = copy / "ffn.bundles"
    whole = bundles.read_bytes()
    bundles.write_bytes(whole[:-1])
    assert isinstance(error_of(copy, ModelOptions()), ModelTruncated)
    bundles.write_bytes(b"\0" * len(whole))
    assert isinstance(error_of(copy, ModelOptions()), LayoutError)
    (copy / "manifest.json").write_bytes(b"{}")
    assert isinstance(error_of(copy, ModelOptions()), LayoutError)
    assert can_chat(copy)  # so that opening it says what is wrong
    assert isinstance(error_of(copy / "gone", ModelOptions()), ModelNotFound)


def test_a_model_without_a_tokenizer_is_not_for_a_chat() -> None:
    error = error_of(GOLDEN, ModelOptions())
    assert isinstance(error, UsageError)
    assert "came without a tokenizer, which a chat needs" in str(error)
    assert not can_chat(GOLDEN)


def test_the_demo_is_looked_at_once_it_is_made(
    demo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = ModelOptions(memory=210 * MIB)
    monkeypatch.setattr(
        "flashllm.library.open_check.demo_directory", lambda _: tmp_path / "not made yet"
    )
    check_openable(ModelChoice(), small, INTERPRETER)
    monkeypatch.setattr("flashllm.library.open_check.demo_directory", lambda _: demo)
    with pytest.raises(MemoryCeilingTooSmall):
        check_openable(ModelChoice(), small, INTERPRETER)
