"""What a conversion says before it begins and afterwards, and that a dry run writes nothing."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flashllm.convert import ConversionPlan, convert, phases, reorder

from flashllm.cli.main import main
from flashllm.errors import (
    CannotCreate,
    DestinationExists,
    FlashllmError,
    NotEnoughSpace,
    UsageError,
)
from flashllm.hardware import machine_profile
from flashllm.hardware.device import describe_device
from flashllm.library import conversion_preview, conversion_speeds
from flashllm.library.conversion_events import (
    PhaseEvent,
    PlanEvent,
    SummaryEvent,
    parse_event,
)
from flashllm.library.conversion_options import ConvertOptions
from flashllm.library.conversion_preview import preview
from flashllm.library.conversion_speeds import ConversionSpeeds, keep_speeds, speeds_for
from flashllm.library.conversion_summary import format_summary, summarize
from flashllm.library.scan import Conditions
from flashllm.progress import SilentProgress
from flashllm.schedule import Schedule
from tests.support.checkpoints import write_checkpoint
from tests.support.profiles import law
from tests.support.specs import SPEC

WIDE = {"hidden_size": 96, "word_embed_proj_dim": 96, "ffn_dim": 512, "vocab_size": 300}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.ids"
    lines = [" ".join(str(3 + (a * b) % 30) for b in range(50)) for a in range(1, 41)]
    path.write_text("\n".join(lines))
    return path


class Phases(SilentProgress):
    """Remembers what was begun."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def start(self, phase: str, total_bytes: int) -> None:
        self.started.append(phase)


def planned(source: Path, destination: Path, **options: Any) -> ConversionPlan:
    found: list[ConversionPlan] = []
    convert(source, destination, on_plan=found.append, dry_run=True, **options)
    (plan,) = found
    return plan


def directory_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


@pytest.mark.parametrize("dtype", ["f32", "int8"])
def test_what_is_said_is_what_is_written(tmp_path: Path, dtype: str) -> None:
    source, made = write_checkpoint(tmp_path / "source", **WIDE), tmp_path / "made"
    plan = planned(source, made, dtype=dtype)
    assert not made.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
    progress = Phases()
    convert(source, made, dtype=dtype, progress=progress)
    # The manifest with its hash is what it does not count.
    assert plan.written_bytes == pytest.approx(directory_bytes(made), rel=0.02)
    assert plan.source_bytes == sum(
        (source / name).stat().st_size for name in ("config.json", "model.safetensors")
    )
    assert (plan.scratch_bytes, plan.spec.dtype) == (0, dtype)
    assert progress.started == [phase.name for phase in plan.phases]


def test_phases_of_training_are_foretold(tmp_path: Path, text: Path) -> None:
    source, made = write_checkpoint(tmp_path / "source", **WIDE), tmp_path / "made"
    (source / "tokenizer.model").unlink()
    options: dict[str, Any] = {"predictors": "train", "calibration": text}
    plan = planned(source, made, order="coactivation", **options)
    progress = Phases()
    convert(source, made, order="coactivation", progress=progress, **options)
    foretold = [phase.name for phase in plan.phases]
    unforeseen = [
        name for name in progress.started if not any(name.startswith(one) for one in foretold)
    ]
    # Both take next to no time.
    assert set(unforeseen) <= {"encoding the calibration text", "ordering neurons"}
    for name in foretold:
        assert any(started.startswith(name) for started in progress.started), name
    judged = [name for name in progress.started if name.startswith(phases.JUDGING)]
    assert len(judged) >= phases.JUDGED_TIMES
    assert plan.scratch_bytes > directory_bytes(made)  # the model in its first order, a recording
    computing = [phase.name for phase in plan.phases if phase.operations]
    assert computing == [phases.RECORDING, phases.TRAINING, phases.JUDGING, phases.TRACING]


def test_the_numbers_of_training_are_those_of_the_training() -> None:
    from flashllm.predictors import calibration_texts, fit, in_loop, neuron_order, split, train
    from flashllm.predictors.recorded_rows import RowShape

    assert phases.TOKENS_MAX == calibration_texts.TOKENS_MAX
    assert phases.TRAIN_SHARE == split.TRAIN_SHARE
    assert phases.JUDGED_SHARE == split.TUNE_SHARE
    assert phases.JUDGED_TOKENS_MAX == in_loop.JUDGED_TOKENS_MAX
    assert phases.TRACE_BITS_BYTES == neuron_order.BITS_BYTES_MAX
    assert conversion_preview.CALIBRATION_NAMES == calibration_texts.NAMES
    assert conversion_preview.BYTES_PER_TOKEN_MIN == calibration_texts.BYTES_PER_TOKEN_MIN
    passes = (fit.TOKENS_SEEN, fit.PASSES_MIN, fit.PASSES_MAX)
    assert passes == (phases.TOKENS_SEEN, phases.PASSES_MIN, phases.PASSES_MAX)
    spec = replace(SPEC, d_model=4096, d_ffn=16384, head_dim=1024, embed_dim=4096)
    shape = RowShape(spec.d_model, spec.d_ffn)
    for tokens in (1_000, 100_000, 375_000):
        expected = train.operations_of_layer(shape, round(0.8 * tokens))
        assert phases.training_operations(spec, tokens) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("command", ["convert", "reorder"])
def test_a_dry_run_gives_the_error_that_the_work_would_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, text: Path, sparse_model: Path
) -> None:
    source = write_checkpoint(tmp_path / "source", **WIDE)

    def both(destination: Path, kind: type[FlashllmError]) -> None:
        def work(dry_run: bool) -> None:
            if command == "convert":
                convert(source, destination, dry_run=dry_run)
            else:
                reorder(sparse_model, destination, calibration=text, dry_run=dry_run)

        for dry_run in (True, False):
            with pytest.raises(kind):
                work(dry_run)

    both(text, DestinationExists)
    both(tmp_path / "none" / "made", CannotCreate)
    both(source / "made" if command == "convert" else sparse_model / "made", CannotCreate)
    status = os.statvfs(tmp_path)
    small = type("Status", (), {"f_bavail": 1, "f_frsize": 512, "f_bsize": 512})
    monkeypatch.setattr(os, "statvfs", lambda path: small)
    both(tmp_path / "made", NotEnoughSpace)
    monkeypatch.setattr(os, "statvfs", lambda path: status)
    if command == "convert":
        with pytest.raises(UsageError):
            convert(source, tmp_path / "made", predictors="train", dry_run=True)
    assert not (tmp_path / "made").exists()


def test_reordering_is_foretold(sparse_model: Path, tmp_path: Path, text: Path) -> None:
    found: list[ConversionPlan] = []
    progress = Phases()
    reorder(
        sparse_model, tmp_path / "made", calibration=text, progress=progress, on_plan=found.append
    )
    (plan,) = found
    assert plan.written_bytes == pytest.approx(directory_bytes(tmp_path / "made"), rel=0.1)
    assert [phase.name for phase in plan.phases] == [phases.TRACING, phases.REORDERING]
    assert set(progress.started) - {"ordering neurons"} == {phases.TRACING, phases.REORDERING}


# What is said


def test_the_command_says_it_before_and_after(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, made = write_checkpoint(home / "source", **WIDE), home / "made"
    assert main(["convert", str(source), str(made), "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("writes ")
    assert f"to {made}, in f32; reads" in shown.out
    assert "takes less than a second" in shown.out
    assert not made.exists()
    assert main(["convert", str(source), str(made), "--progress", "plain"]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{made}\n"
    before, after = shown.err.index("flashllm: writes "), shown.err.index("resident weights:")
    assert before < after < shown.err.index("written in ")
    assert f"flashllm: next: flashllm chat {made}" in shown.err
    assert main(["convert", str(source), str(home / "silent"), "--progress", "none"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == (f"{home / 'silent'}\n", "")
    assert main(["convert", str(source), str(made), "--dry-run"]) == 73
    assert "exists already" in capsys.readouterr().err


def test_lines_for_programs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, made = write_checkpoint(home / "source", **WIDE), home / "made"
    assert main(["convert", str(source), str(made), "--progress", "jsonl"]) == 0
    lines = capsys.readouterr().err.splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    assert set(first) == {
        *("event", "lines", "destination", "written_bytes", "source_bytes", "scratch_bytes"),
        "seconds",
        "schema",
    }
    assert last["size_bytes"] == pytest.approx(first["written_bytes"], rel=0.02)
    assert last["next"] == f"flashllm chat {made}"
    events = [parse_event(line.encode()) for line in lines]
    assert isinstance(events[0], PlanEvent)
    assert isinstance(events[-1], SummaryEvent)
    shares = [event.whole_share for event in events if isinstance(event, PhaseEvent)]
    assert None not in shares
    assert shares == sorted(shares)  # type: ignore[type-var]
    assert shares[-1] == 1.0


def test_a_model_with_predictors_says_their_errors(sparse_model: Path, tmp_path: Path) -> None:
    summary = summarize(sparse_model, 2.0)
    assert summary.has_predictors
    lines = format_summary(summary)
    assert lines[0].endswith("MB/s") or lines[0].endswith("kB/s")
    assert lines[-1] == f"next: flashllm run {sparse_model} --raw --ids 1,2,3"  # no tokenizer
    found = {"false_negatives": 0.0123, "false_positives": 0.05, "perplexity_ratio": 1.01}
    told = type(summary)(tmp_path / "a b", 1 << 20, 1.0, True, True, found, "a b")
    assert format_summary(told)[1:] == [
        "predictors: 1.23% of the active neurons missed and 5.00% of the others read needlessly"
        " (means of the layers), perplexity 1.010 of the exact model's",
        "next: flashllm chat 'a b'",
    ]


def test_what_is_in_the_library_is_called_by_its_name(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_checkpoint(home / "source")
    models = home / "home" / "models"
    models.mkdir(parents=True)
    convert(source, models / "big one.flash")
    assert summarize(models / "big one.flash", 1.0).next_command == "flashllm chat 'big one'"
    # Where the name stands for another model, or for two, the path is needed.
    monkeypatch.chdir(home)
    convert(source, home / "big one")
    assert summarize(models / "big one.flash", 1.0).next_command == (
        f"flashllm chat '{models / 'big one.flash'}'"
    )
    assert summarize(home / "big one", 1.0).next_command == "flashllm chat 'big one'"
    shutil.rmtree(home / "big one")
    convert(source, models / "big one")
    assert str(models) in summarize(models / "big one.flash", 1.0).next_command


# How long it takes


def test_the_time_is_by_what_is_known_of_the_disk(home: Path) -> None:
    assert speeds_for(home) == ConversionSpeeds()
    device = describe_device(home)
    slow = replace(law(8e-6, 1e8), device=device, quick=True)
    machine_profile.save(slow)
    found = speeds_for(home / "not" / "there")
    assert found.moved_bytes_per_second == slow.sequential_bytes_per_second
    assert "quick profile" in found.origin
    machine_profile.save(replace(law(8e-6, 9e9), device=device))
    assert speeds_for(home).moved_bytes_per_second == conversion_speeds.MOVED_BYTES_PER_SECOND


def test_an_earlier_conversion_tells_how_long_the_next_one_takes(home: Path) -> None:
    now = [0.0]
    work = (phases.PhaseWork("move", 6e9), phases.PhaseWork("train", operations=4e12))
    schedule = Schedule(ConversionSpeeds().expect(work), lambda: now[0])
    schedule.start("move", 1)
    now[0] = 20.0
    schedule.start("train", 1)
    now[0] = 60.0
    schedule.finish()
    keep_speeds(home, work, schedule)
    found = speeds_for(home)
    assert (found.moved_bytes_per_second, found.operations_per_second) == (3e8, 1e11)
    assert found.origin.startswith("as an earlier conversion to ")
    assert sum(phase.seconds for phase in found.expect(work)) == pytest.approx(60)
    # A busy machine once does not change all.
    again = Schedule(found.expect(work), lambda: now[0])
    again.start("move", 1)
    now[0] += 60.0
    again.finish()
    keep_speeds(home, work, again)
    assert speeds_for(home).moved_bytes_per_second == pytest.approx(2e8)
    (home / "home" / "conversion-speeds.json").write_text("{")
    assert speeds_for(home) == ConversionSpeeds()


def test_what_took_no_time_is_not_kept(home: Path) -> None:
    work = (phases.PhaseWork("move", 6e3),)
    schedule = Schedule(ConversionSpeeds().expect(work), lambda: 0.0)
    schedule.start("move", 1)
    schedule.finish()
    keep_speeds(home, work, schedule)
    assert not (home / "home" / "conversion-speeds.json").exists()


def test_the_preview_has_the_same_numbers(home: Path, text: Path) -> None:
    source, made = write_checkpoint(home / "source", **WIDE), home / "made"
    plan = planned(source, made, dtype="f32")
    expected = sum(phase.seconds for phase in speeds_for(made).expect(plan.phases))
    said = preview(source, made, ConvertOptions("f32"), Conditions(None))
    assert said.seconds == pytest.approx(expected, rel=0.05)
    trained = ConvertOptions("f32", predictors="train", calibration=text)
    plan = planned(source, made, dtype="f32", predictors="train", calibration=text)
    expected = sum(phase.seconds for phase in speeds_for(made).expect(plan.phases))
    assert preview(source, made, trained, Conditions(None)).seconds == pytest.approx(
        expected, rel=0.5
    )
    without = ConvertOptions(predictors="train")
    assert preview(source, made, without, Conditions(None)).seconds is None  # no text
    (source / "model.safetensors").unlink()
    assert preview(source, made, ConvertOptions(), Conditions(None)).seconds is None
