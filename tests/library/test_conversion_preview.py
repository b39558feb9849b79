"""What a conversion is said to make, beside what it makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flashllm.convert import convert

from flashllm.errors import (
    CannotCreate,
    DestinationExists,
    ModelNotFound,
    UnsupportedModel,
    UsageError,
)
from flashllm.library.conversion_formatting import format_duration, format_preview
from flashllm.library.conversion_options import ConvertOptions
from flashllm.library.conversion_preview import preview
from flashllm.library.library import Library
from flashllm.library.scan import Conditions, examine
from flashllm.options import ModelOptions
from flashllm.units import MIB, format_ceiling, format_speed
from tests.library.test_hf_cache import put
from tests.support.checkpoints import write_checkpoint

KNOWN = Conditions(200 * MIB, ModelOptions(memory=1 << 30))


def given(**options: Any) -> Conditions:
    return replace(KNOWN, options=KNOWN.options.having(**options))


WIDE = {"hidden_size": 96, "word_embed_proj_dim": 96, "ffn_dim": 512, "vocab_size": 300}


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8", "int4"])
def test_bytes_and_memory_are_those_of_the_converted_model(tmp_path: Path, dtype: str) -> None:
    source, made = write_checkpoint(tmp_path / "source", **WIDE), tmp_path / "made"
    (source / "tokenizer.model").unlink()
    options = ConvertOptions(dtype)
    said = preview(source, made, options, KNOWN)
    convert(source, made, dtype=dtype)
    found = examine(made, KNOWN)
    assert found.size_bytes is not None
    assert said.disk_bytes == pytest.approx(found.size_bytes, rel=0.05)
    assert said.smallest_ceiling_bytes == pytest.approx(found.smallest_ceiling_bytes, rel=0.01)
    assert (said.features, said.encoding) == (found.features, found.encoding)
    assert said.free_bytes > 0
    assert said.tokens_per_second is None  # no profile


def test_pickles_are_for_the_command_line(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", **WIDE)
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"flashllm convert .*source --allow-pickle` reads"):
        preview(source, tmp_path / "made", ConvertOptions(), KNOWN)


def test_predictors_take_room_and_are_called_lossy(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", **WIDE)
    exact = preview(source, tmp_path / "made", ConvertOptions(), KNOWN)
    options = ConvertOptions(predictors="train")
    lossy = preview(source, tmp_path / "made", options, KNOWN)
    assert lossy.disk_bytes > exact.disk_bytes
    inside = preview(source, tmp_path / "made", ConvertOptions(predictors="checkpoint"), KNOWN)
    assert inside.disk_bytes == lossy.disk_bytes
    assert any("lossy: predictors" in line for line in format_preview(lossy, options))
    assert not any("lossy" in line for line in format_preview(exact, ConvertOptions()))
    assert options.lossy
    assert ConvertOptions("int4").lossy
    assert not ConvertOptions("f16").lossy


def test_a_model_whose_neurons_are_never_zero(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", **WIDE, activation_function="gelu")
    said = preview(source, tmp_path / "made", ConvertOptions(), KNOWN)
    assert not said.sparse
    assert "no neuron of it is ever zero: every token needs all of them" in format_preview(
        said, ConvertOptions()
    )


def test_memory_is_that_of_the_chat_and_may_be_too_little(tmp_path: Path) -> None:
    source, options = write_checkpoint(tmp_path / "source", **WIDE), ConvertOptions()
    alone = preview(source, tmp_path / "made", options, KNOWN)
    beside = given(application_bytes=70 * MIB, memory=MIB)
    said = preview(source, tmp_path / "made", options, beside)
    assert alone.smallest_ceiling_bytes is not None
    assert said.smallest_ceiling_bytes == alone.smallest_ceiling_bytes + 70 * MIB
    lines = format_preview(said, options)
    assert any(line.endswith("at least, 70 MiB of it for the chat itself") for line in lines)
    assert "more than the 1 MiB it would get" in lines
    assert not any("more than" in line for line in format_preview(alone, options))


def test_it_is_planned_as_it_would_be_run(tmp_path: Path) -> None:
    source, options = write_checkpoint(tmp_path / "source", **WIDE), ConvertOptions(None, "train")
    lossy = preview(source, tmp_path / "made", options, KNOWN)
    exact = preview(source, tmp_path / "made", options, given(select="all"))
    assert lossy.smallest_ceiling_bytes is not None
    assert exact.smallest_ceiling_bytes is not None
    assert exact.smallest_ceiling_bytes < lossy.smallest_ceiling_bytes  # without predictors
    # What it cannot be run with is no reason not to convert it.
    without = preview(source, tmp_path / "made", ConvertOptions(), given(select="gate"))
    assert without.smallest_ceiling_bytes == exact.smallest_ceiling_bytes


def test_what_nobody_knows_is_not_said(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", **WIDE)
    said = preview(source, tmp_path / "made", ConvertOptions(), Conditions(None))
    assert (said.smallest_ceiling_bytes, said.tokens_per_second) == (None, None)
    assert not any(
        "memory" in line or "tokens/s" in line for line in format_preview(said, ConvertOptions())
    )


def test_what_cannot_be_converted(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        preview(tmp_path / "none", tmp_path / "made", ConvertOptions(), KNOWN)
    source = write_checkpoint(tmp_path / "source", model_type="unheard-of")
    with pytest.raises(UnsupportedModel):
        preview(source, tmp_path / "made", ConvertOptions(), KNOWN)


def test_the_options_are_those_of_the_command() -> None:
    assert ConvertOptions().arguments() == ["--predictors", "none"]
    given = ConvertOptions("int8", "train", Path("/a/text.txt")).arguments()
    assert given == [
        "--predictors", "train", "--dtype", "int8", "--calibration", "/a/text.txt",
    ]  # fmt: skip
    again = ConvertOptions("mxfp4", requantise=True)
    assert again.arguments() == ["--predictors", "none", "--dtype", "mxfp4", "--requantise"]
    assert again.lossy
    assert ConvertOptions(requantise=True).lossy


def test_where_a_model_would_go(tmp_path: Path) -> None:
    library = Library(home=tmp_path)
    assert library.destination(Path("/some/big")) == tmp_path / "big.flash"
    (tmp_path / "big.flash").mkdir()
    assert library.destination(Path("/some/big")) == tmp_path / "big-2.flash"
    snapshot = Path("/hub/models--org--tiny/snapshots/0123")
    assert library.destination(snapshot) == tmp_path / "tiny.flash"
    assert library.destination(Path("/")).parent == tmp_path
    assert library.destination(Path("/of/snapshots/mine")) == tmp_path / "mine.flash"
    assert library.destination(Path("/snapshots/mine")) == tmp_path / "mine.flash"
    assert Library().destination(tmp_path / "x") == tmp_path / "x.flash"


def test_words() -> None:
    assert [format_duration(seconds) for seconds in (0, 89, 600, 4800)] == [
        "0 s", "89 s", "10 min", "1 h 20 min",
    ]  # fmt: skip
    assert [format_speed(speed) for speed in (0.123, 2.34, 99.4, 410.0)] == [
        "0.12", "2.3", "99", "410",
    ]  # fmt: skip
    assert format_ceiling(MIB + 1) == "2 MiB"  # never less than is needed
    assert format_ceiling((10 << 30) + 1) == "10.1 GiB"


def test_what_is_wrong_with_the_destination_is_said_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flashllm.library.library.interpreter_bytes", lambda: 200 * MIB)
    source, home = write_checkpoint(tmp_path / "source"), tmp_path / "deep" / "home"
    library = Library(home=home)
    with pytest.raises(DestinationExists):
        library.preview(source, source, ConvertOptions())
    with pytest.raises(CannotCreate, match="no such directory"):
        library.preview(source, tmp_path / "none" / "made", ConvertOptions())
    # The home of models is made when it is needed, and only that.
    assert library.preview(source, home / "made", ConvertOptions()).disk_bytes > 0
    assert not home.exists()
    library.prepare(tmp_path / "none" / "made")
    library.prepare(home / "made")
    assert home.is_dir()
    assert not (tmp_path / "none").exists()
    (home / "made").mkdir()
    with pytest.raises(DestinationExists):
        library.preview(source, home / "made", ConvertOptions())
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotCreate):
        Library(home=tmp_path / "file" / "home").prepare(tmp_path / "file" / "home" / "made")


def test_a_checkpoint_of_the_cache_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flashllm.library.library.interpreter_bytes", lambda: 200 * MIB)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    _, snapshot = put(tmp_path / "hub")
    given = Conditions(options=ModelOptions(memory=1 << 30))  # what is available changes
    library, made = Library(home=tmp_path, given=given), tmp_path / "tiny.flash"
    found = library.preview(Path("org/tiny"), made, ConvertOptions())
    named = library.preview(snapshot, made, ConvertOptions())
    assert replace(found, free_bytes=0) == replace(named, free_bytes=0)  # others write meanwhile
    assert library.destination(Path("org/tiny")) == made
    with pytest.raises(ModelNotFound, match="did you mean org/tiny"):
        library.preview(Path("org/tinny"), made, ConvertOptions())
