"""`flashllm ls`: what it prints for people and for programs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from flashllm.cli.main import main
from flashllm.conversations.store import SessionStore
from flashllm.library import runtime_memory
from flashllm.library.library import Library, usual_library
from flashllm.library.models import FoundModel
from flashllm.library.scan import Conditions
from flashllm.options import ModelOptions
from flashllm.planning.plan import Plan, make_plan
from flashllm.planning.sizes import Sizes
from flashllm.settings.resolve import load_settings
from flashllm.units import MIB
from tests.library.test_hf_cache import put
from tests.support.specs import SPEC

GOLDEN = Path(__file__).parents[1] / "flash" / "golden"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user of its own, whose processes take 200 MiB."""
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(runtime_memory, "_measure", lambda: 200 * MIB)
    return tmp_path


def test_models(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(GOLDEN / "converted", machine / "models" / "whole")
    shutil.copytree(GOLDEN / "converted", machine / "home" / "models" / "own")
    broken = machine / "models" / "broken"
    shutil.copytree(GOLDEN / "converted", broken)
    (broken / "ffn.bundles").unlink()
    assert main(["ls", str(machine / "models"), "--memory", "1GiB"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].split() == ["model", "size", "precision", "needs", "tok/s", "path"]
    for demo in ("demo ", "demo-moe "):
        assert lines[1].startswith(demo)
        assert lines[2] == "    made when it is opened"
        del lines[1:3]
    assert lines[1].split()[-2:] == ["-", str(broken)]
    assert lines[2] == "    cannot be opened: ffn.bundles: missing; convert the checkpoint again"
    assert lines[3].split()[1:4] == ["38.9", "KiB", "f16"]
    assert lines[3].endswith(str(machine / "models" / "whole"))
    assert lines[5].endswith(str(machine / "home" / "models" / "own"))
    assert "bench io" in shown.err
    assert "needs: the least --memory for `flashllm run`; the chat counts" in shown.err
    assert main(["ls", str(machine / "models" / "whole"), "--memory", "1MiB"]) == 0
    shown = capsys.readouterr()
    assert "needs more than the 1 MiB it would get" in shown.out
    assert "bench io" not in shown.err


def test_speeds_say_what_they_come_from(
    machine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = FoundModel(machine, "whole", "", "f16", 1, 300 * MIB, 2.34, 1 << 30)
    guessed = replace(whole, path=machine / "b", name="b", assumed="3 % of the neurons used")
    monkeypatch.setattr(Library, "scan", lambda _: iter((whole, guessed)))
    assert main(["ls"]) == 0
    shown = capsys.readouterr()
    _, first, second, assumed = shown.out.splitlines()
    assert first.split()[5:7] == ["MiB", "2.3"]
    assert second.split()[5:7] == ["MiB", "~2.3"]
    assert assumed == "    assumed: 3 % of the neurons used"
    assert "expected in 1024 MiB, from measured rates of disk and machine; ~: and" in shown.err


def test_models_for_programs(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(GOLDEN / "converted", machine / "whole")
    assert main(["ls", str(machine / "whole"), "--json"]) == 0
    *demos, whole = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(demo["name"], demo["is_demo"]) for demo in demos] == [
        ("demo", True),
        ("demo-moe", True),
    ]
    assert (whole["path"], whole["problem"]) == (str(machine / "whole"), "")
    assert whole["smallest_ceiling_bytes"] > 200 * MIB


def test_checkpoints(
    machine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(machine / "hub"))
    assert main(["ls", "--checkpoints"]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"no checkpoints in {machine / 'hub'}" in shown.err
    _, snapshot = put(machine / "hub")
    (machine / "hub" / "models--org--half").mkdir()
    assert main(["ls", "--checkpoints"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("org/half")
    assert lines[2] == "    cannot be converted: nothing of it was fetched"
    assert lines[3].startswith("org/tiny    main (0123456)")
    assert lines[3].endswith(str(snapshot))
    assert main(["ls", "--checkpoints", "--json"]) == 0
    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == [
        "org/half",
        "org/tiny",
    ]


def open_plan(interpreter_bytes: int) -> Plan:
    sizes = Sizes(interpreter_bytes, embeddings=MIB, attention=MIB, predictors=0, stride=1024)
    return make_plan(SPEC, sizes, ModelOptions(select="all"))


def test_where_models_are_looked_for(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "home").mkdir()
    (machine / "home" / "config.toml").write_text(
        f'memory = "3GiB"\n[chat]\nmodel_dirs = ["{machine / "dirs"}"]\n'
    )
    monkeypatch.setenv("FLASHLLM_MODEL", str(machine / "named"))
    monkeypatch.setenv("FLASHLLM_SELECT", "all")
    monkeypatch.setenv("FLASHLLM_WINDOW", "3")
    monkeypatch.setenv("FLASHLLM_NO_DIRECT", "1")
    plan = open_plan(200 * MIB)
    library = usual_library(
        load_settings(), directories=[Path("given")], application_bytes=5, open_plan=plan
    )
    assert library.directories == (Path("given"), machine / "dirs")
    assert library.models == (machine / "named",)
    assert library.home == machine / "home" / "models"
    assert library.given == Conditions(
        200 * MIB,
        ModelOptions(application_bytes=5, memory=3 << 30, select="all", window=3, direct=False),
    )
    (machine / "home" / "config.toml").unlink()
    # Without a ceiling of the settings it is that of the model that is open.
    given = usual_library(load_settings(), open_plan=plan).given
    assert given.options.memory == plan.ceiling_bytes
    assert usual_library(load_settings()).given == Conditions(
        options=ModelOptions(select="all", window=3, direct=False)
    )


def test_nothing_is_measured_beside_an_open_model(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure() -> int:
        pytest.fail("a second process that imports torch, above the ceiling")

    monkeypatch.setattr(runtime_memory, "_measure", measure)
    shutil.copytree(GOLDEN / "converted", machine / "home" / "models" / "own")
    library = usual_library(load_settings(), open_plan=open_plan(200 * MIB))
    assert library.conditions().interpreter_bytes == 200 * MIB
    assert any(found.smallest_ceiling_bytes for found in library.scan())
    assert runtime_memory.kept_bytes() is None


def test_models_of_conversations(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (machine / "home").mkdir()
    with SessionStore() as store:
        store.create(name="one", model=str(machine / "used"))
        store.create(name="two", model="no path")
    assert main(["ls"]) == 0
    shown = capsys.readouterr().out
    assert str(machine / "used") in shown
    assert "no path" not in shown
    assert "cannot be opened: there is no such model" in shown
    (machine / "home" / "sessions.db").write_bytes(b"no database" * 1000)
    assert main(["ls"]) == 0
    assert "are not looked at" in capsys.readouterr().err
