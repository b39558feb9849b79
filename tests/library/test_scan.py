"""What is found of converted models: of whole ones numbers, of broken ones what is wrong."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flashllm.convert import demo_directory, demo_source, describe

from flashllm.flash.file_names import MANIFEST_FILE
from flashllm.flash.manifest import manifest_hash_line
from flashllm.hardware import machine_profile
from flashllm.hardware.device import describe_device, machine_name
from flashllm.library import runtime_memory as interpreter
from flashllm.library.formatting import figures, format_shape
from flashllm.library.library import DEMO_FEATURES, Library
from flashllm.library.models import FoundModel, ModelChoice
from flashllm.library.scan import Conditions, find_models
from flashllm.options import ModelOptions
from flashllm.system.demos import DEMO_NAMES, EXPERTS_DEMO_NAME
from flashllm.units import MIB
from tests.support.profiles import law

GOLDEN = Path(__file__).parents[1] / "flash" / "golden"
KNOWN = Conditions(200 * MIB, ModelOptions(memory=1 << 30))
UNKNOWN = Conditions(interpreter_bytes=None)


def given(**options: Any) -> Conditions:
    return replace(KNOWN, options=KNOWN.options.having(**options))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A directory with one model in it."""
    directory = tmp_path / "models"
    shutil.copytree(GOLDEN / "converted", directory / "whole")
    return directory


def only(directory: Path, conditions: Conditions = KNOWN) -> FoundModel:
    (found,) = find_models([directory], [], conditions)
    return found


def rewrite_manifest(model: Path, **changes: object) -> None:
    raw = json.dumps({**json.loads((model / MANIFEST_FILE).read_bytes()), **changes}).encode()
    (model / MANIFEST_FILE).write_bytes(raw)
    (model / "manifest.sha256").write_bytes(manifest_hash_line(raw))


def test_a_whole_model(models: Path) -> None:
    found = only(models)
    apart = ("manifest.json", "manifest.sha256")
    files = [path for path in (models / "whole").iterdir() if path.name not in apart]
    size = sum(path.stat().st_size for path in files)
    assert (found.path, found.problem) == (models / "whole", "")
    assert found.features == "2 layers of 3 neurons, relu"
    assert (found.encoding, found.size_bytes) == ("f16", size)
    assert found.remarks == ("no tokenizer: takes only token ids",)
    assert found.smallest_ceiling_bytes is not None
    assert 200 * MIB < found.smallest_ceiling_bytes < 1 << 30
    assert found.tokens_per_second is None  # no profile, no speed
    assert found.choice == ModelChoice(models / "whole", found.name)


def test_the_speed_comes_from_the_profile_of_this_device(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    device = describe_device(models)
    measured = law(1e-4, 2e9)
    monkeypatch.setattr("flashllm.hardware.staleness.for_this_machine", lambda kept: kept)
    file = machine_profile.save(replace(measured, device=device))
    found = only(models)
    assert found.tokens_per_second is not None
    # Two layers' overhead and the token's own: 0.1 ms each, and 0.5 ms; the rest is near nothing.
    assert 1 / 0.002 < found.tokens_per_second < 1 / 0.0007
    assert found.ceiling_bytes == 1 << 30
    # It says nothing of reads through the page cache, unless that is what was asked for.
    through_cache = given(direct=False)
    assert only(models, through_cache).tokens_per_second is None
    assert only(models, given(direct=False, profile=file)).tokens_per_second is not None


def test_the_least_memory_has_room_for_the_application(models: Path) -> None:
    alone, beside = only(models), only(models, given(application_bytes=70 * MIB))
    assert alone.smallest_ceiling_bytes is not None
    assert beside.smallest_ceiling_bytes == alone.smallest_ceiling_bytes + 70 * MIB
    assert (alone.application_bytes, beside.application_bytes) == (0, 70 * MIB)


def test_the_usual_ceiling_is_that_of_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashllm.library.scan.usual_ceiling", lambda *parts: sum(parts) + 1)
    assert Conditions(200, ModelOptions(application_bytes=30)).ceiling_bytes == 231
    assert Conditions(200, ModelOptions(application_bytes=30, memory=7)).ceiling_bytes == 7
    assert Conditions(None, ModelOptions(application_bytes=30)).ceiling_bytes is None


def test_models_are_planned_as_they_would_be_run(models: Path) -> None:
    found = only(models, given(select="predicted"))
    assert "has no predictors" in found.problem
    longer, shorter = only(models), only(models, given(context=1))
    assert longer.smallest_ceiling_bytes is not None
    assert shorter.smallest_ceiling_bytes is not None
    assert shorter.smallest_ceiling_bytes < longer.smallest_ceiling_bytes


def test_a_ceiling_too_small_has_no_speed(models: Path) -> None:
    found = only(models, given(memory=MIB))
    assert (found.tokens_per_second, found.problem) == (None, "")
    assert found.smallest_ceiling_bytes is not None


def test_a_speed_by_a_quick_profile_is_called_so(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    device = describe_device(models)
    kept = replace(law(8e-6, 2e9), device=device, machine_name=machine_name(), quick=True)
    machine_profile.save(kept)
    found = only(models, KNOWN)
    assert found.tokens_per_second is not None
    assert found.quick
    assert figures(found)[-1].endswith(" quick")
    machine_profile.save(replace(kept, quick=False))
    assert not only(models, KNOWN).quick


def test_what_is_unknown_is_not_made_up(models: Path) -> None:
    found = only(models, UNKNOWN)
    assert (found.smallest_ceiling_bytes, found.tokens_per_second) == (None, None)
    assert (found.ceiling_bytes, found.problem) == (None, "")


BREAKAGES = {
    "edited": lambda model: (model / MANIFEST_FILE).write_bytes(b"{}"),
    "no hash": lambda model: (model / "manifest.sha256").unlink(),
    "no manifest": lambda model: (model / MANIFEST_FILE).unlink(),
    "truncated": lambda model: (model / "ffn.bundles").write_bytes(b"x"),
    "a file missing": lambda model: (model / "resident.safetensors").unlink(),
    "a later layout": lambda model: rewrite_manifest(model, layout_version=99),
    "spec of nonsense": lambda model: rewrite_manifest(model, spec={"n_layers": -1}),
    "spec of a list": lambda model: rewrite_manifest(model, spec=[1]),
    "an escape": lambda model: rewrite_manifest(model, layout_version="\x1b]0;x\x07\u202ey"),
    "not JSON": lambda model: (
        (model / MANIFEST_FILE).write_bytes(b"[" * 10**5),
        (model / "manifest.sha256").write_bytes(manifest_hash_line(b"[" * 10**5)),
    ),
    "a directory for a manifest": lambda model: (
        (model / MANIFEST_FILE).unlink(),
        (model / MANIFEST_FILE).mkdir(),
    ),
    "a link to itself": lambda model: (
        (model / MANIFEST_FILE).unlink(),
        (model / MANIFEST_FILE).symlink_to(model / MANIFEST_FILE),
    ),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_one_is_listed_with_its_problem(models: Path, breakage: str) -> None:
    shutil.copytree(models / "whole", models / "broken")
    BREAKAGES[breakage](models / "broken")
    broken, whole = find_models([models], [], KNOWN)
    assert (broken.path.name, whole.path.name) == ("broken", "whole")
    assert broken.problem
    assert not set(broken.problem + broken.name) & {"\x1b", "\x07", "\n", "\u202e"}
    assert broken.smallest_ceiling_bytes is None
    assert whole.problem == ""


def test_an_error_of_ours_is_a_problem_too(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("flashllm.library.scan.choose_selector", fail)
    assert "ZeroDivisionError" in only(models).problem


def test_what_is_no_model_is_not_listed(models: Path) -> None:
    (models / "notes").mkdir()
    (models / "file").write_text("")
    (models / "deeper").mkdir()
    for name in (
        "whole.partial-123",
        "demo-0123456789abcdef",
        "demo-moe-0123456789abcdef",
        "deeper/below",
    ):
        shutil.copytree(models / "whole", models / name)
    assert only(models).path.name == "whole"


def test_each_is_listed_once(models: Path) -> None:
    (models / "link").symlink_to(models / "whole")
    twice = [models, models / "whole", models / ".." / "models"]
    found = list(find_models(twice, [models / "whole"], KNOWN))
    assert [model.path for model in found] == [models / "whole"]


def test_names_are_harmless(models: Path) -> None:
    rewrite_manifest(models / "whole", name="\x1b[31mred\nline\u202e [b]x[/b]")
    odd = models / "\x1b[31mblue\nline\u202e [b]x.flash"
    (models / "whole").rename(odd)
    assert only(models).name == "blue line [b]x"
    assert only(models).source == "red line [b]x[/b]"
    nameless = models / "\x1b[2J"
    shutil.copytree(odd, nameless)
    (nameless / MANIFEST_FILE).unlink()
    broken = next(m for m in find_models([models], [], KNOWN) if m.problem)
    assert "\x1b" not in broken.name + broken.problem


def test_a_model_that_was_named_and_has_gone(tmp_path: Path) -> None:
    (gone,) = find_models([], [tmp_path / "gone"], KNOWN)
    assert gone.problem == "there is no such model; `flashllm convert` makes one"


def test_directories_that_cannot_be_looked_through(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = list(find_models([tmp_path / "gone", tmp_path / "file"], [], KNOWN))
    assert [model.problem for model in found] == [
        "cannot be looked through: No such file or directory",
        "cannot be looked through: Not a directory",
    ]


def test_a_crowded_directory(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashllm.library.directories.ENTRIES_MAX", 1)
    shutil.copytree(models / "whole", models / "second")
    one, rest = find_models([models], [], KNOWN)
    assert one.problem == ""
    assert "more than 1 entries" in rest.problem


def test_time_is_bounded(models: Path) -> None:
    (found,) = find_models([models], [], KNOWN, seconds_max=-1.0)
    assert "took too long" in found.problem


def test_the_demo_comes_first_and_models_again_once_memory_is_known(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(interpreter, "_measure", lambda: 300 * MIB)
    library = Library(home=models, given=Conditions(options=ModelOptions(application_bytes=MIB)))
    *demos, first, again = library.scan()
    choices = [ModelChoice(None, name, name) for name in DEMO_NAMES]
    assert [(demo.is_demo, demo.choice, demo.remarks) for demo in demos] == [
        (True, choice, ("made when it is opened",)) for choice in choices
    ]
    assert len(set(choices)) == 2
    assert first.smallest_ceiling_bytes is None
    assert again.path == first.path
    assert again.smallest_ceiling_bytes is not None
    assert again.smallest_ceiling_bytes > 301 * MIB
    # What was measured is kept: the second time nothing comes twice.
    monkeypatch.setattr(interpreter, "_measure", lambda: pytest.fail("measured again"))
    assert [model.path for model in library.scan()] == [*(demo.path for demo in demos), again.path]


def test_a_demo_that_was_made_stays_before_one_that_was_not(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(interpreter, "_measure", lambda: 300 * MIB)
    shutil.copytree(models / "whole", demo_directory(), dirs_exist_ok=True)
    made, to_be_made, *others = Library(home=models).scan()
    assert (made.path, made.is_demo) == (demo_directory(), True)
    assert (to_be_made.name, to_be_made.is_demo) == (EXPERTS_DEMO_NAME, True)
    assert not any(found.is_demo for found in others if found.path != made.path)


@pytest.mark.parametrize("name", DEMO_NAMES)
def test_a_demo_is_what_is_said_of_it_before_it_is_made(name: str) -> None:
    spec = describe(demo_source(name))
    assert DEMO_FEATURES[name] == (format_shape(spec), spec.dtype)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_the_demo_can_be_opened_whatever_became_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path))
    monkeypatch.setattr(interpreter, "_measure", lambda: 300 * MIB)
    used = []
    for name in DEMO_NAMES:
        directory = demo_directory(name)
        if is_damaged:
            directory.mkdir(parents=True)
            (directory / MANIFEST_FILE).write_text("{}")
        # Conversations with it name its directory, and those of an earlier version another one.
        used += [str(directory), str(directory.with_name(f"{name}-0123456789abcdef"))]
    demos = list(Library(used=lambda: used).scan())
    assert [(demo.name, demo.is_demo, demo.problem) for demo in demos] == [
        (name, True, "") for name in DEMO_NAMES
    ]


def test_a_model_by_another_name_is_the_same() -> None:
    assert ModelChoice(Path("/a"), "one") == ModelChoice(Path("/a"), "two")
    assert ModelChoice(Path("/a"), "one") != ModelChoice(Path("/b"), "one")


def test_a_home_that_there_is_not_yet_is_no_problem(tmp_path: Path) -> None:
    assert [found.is_demo for found in Library(home=tmp_path / "none").scan()] == [True, True]


@pytest.mark.parametrize("kept", ["", "[]", '{"key": 1}', '{"key": "KEY", "bytes": true}'])
def test_a_bad_measurement_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path))
    monkeypatch.setattr(interpreter, "_key", lambda: "KEY")
    monkeypatch.setattr(interpreter, "_measure", lambda: 5 * MIB)
    (tmp_path / interpreter.KEPT_FILE).write_text(kept)
    assert interpreter.kept_bytes() is None
    assert interpreter.interpreter_bytes() == 5 * MIB == interpreter.kept_bytes()


def test_memory_that_cannot_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path))
    monkeypatch.setattr(interpreter.sys, "executable", str(tmp_path / "no python"))
    assert interpreter.interpreter_bytes() is None
    assert not (tmp_path / interpreter.KEPT_FILE).exists()
