"""The doctor: facts from this machine, and the warnings that facts lead to."""

from __future__ import annotations

import copy
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest

from flashllm.cli.commands.doctor import examine, find_warnings
from flashllm.cli.main import main
from flashllm.system.filesystem import describe_storage, existing_parent

HEALTHY_PLACE: dict[str, Any] = {
    "directory": "/models",
    "filesystem": "ext4",
    "network": False,
    "usb": False,
    "rotational": False,
    "free_bytes": 1 << 40,
    "direct": True,
    "fallback": None,
    "alignment": 512,
    "profile_problem": None,
}
HEALTHY: dict[str, Any] = {
    "core": {"name": "native", "fallback": None, "isa": "avx2", "problem": None},
    "memory": {"available_bytes": 8 << 30},
    "cache": HEALTHY_PLACE,
    "model": dict(HEALTHY_PLACE),
    "versions": {"torch": "2.13.0"},
}


def warnings_with(section: str, **changes: object) -> list[str]:
    facts = copy.deepcopy(HEALTHY)
    facts[section].update(changes)
    return find_warnings(facts)


def test_a_healthy_machine_has_no_warnings() -> None:
    assert find_warnings(HEALTHY) == []


@pytest.mark.parametrize(
    ("section", "changes", "expected"),
    [
        ("core", {"name": "numpy", "fallback": "not built"}, "not built"),
        ("core", {"isa": "scalar"}, "no vector instructions"),
        ("core", {"problem": "isa 'x' is not available"}, "unset FLASHLLM_ISA"),
        ("memory", {"available_bytes": 300 << 20}, "only 300 MiB"),
        ("cache", {"direct": False, "fallback": "probe read: EINVAL"}, "probe read: EINVAL"),
        ("cache", {"direct": None, "fallback": "not probed: x"}, "FLASHLLM_HOME"),
        ("model", {"direct": None, "fallback": "not probed: x"}, "is it a converted model?"),
        ("model", {"network": True, "filesystem": "nfs4"}, "nfs4"),
        ("model", {"usb": True}, "USB"),
        ("model", {"profile_problem": "measured 91 days ago"}, "measured 91 days ago"),
        ("cache", {"rotational": True}, "spinning"),
        ("cache", {"free_bytes": 5 << 20}, "only 5.0 MiB are free"),
        ("versions", {"jinja2": None}, "not installed: jinja2"),
    ],
)
def test_each_trouble_is_told(section: str, changes: dict[str, object], expected: str) -> None:
    warnings = warnings_with(section, **changes)
    assert len(warnings) == 1
    assert expected in warnings[0]


def test_the_facts_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "not" / "yet"))
    facts = examine(None)
    assert facts["core"]["name"] in ("native", "numpy")
    assert facts["core"]["isa"] in facts["core"]["isas"]
    assert facts["memory"]["total_bytes"] >= facts["memory"]["available_bytes"] > 0
    assert facts["cache"]["directory"] == str(tmp_path / "not" / "yet")
    assert facts["cache"]["filesystem"]
    assert facts["cache"]["direct"] in (True, False)
    assert not (tmp_path / "not").exists()
    assert list(tmp_path.iterdir()) == []


def test_only_what_every_system_needs_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [
        "psutil>=5.9",
        "numpy>=1.26; python_version >= '3'",
        "absent-backport>=2; python_version < '3'",
        'absent-plotter>=3; extra == "bench"',
        "absent-and-needed[all]<9,>=8",
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: asked)
    facts = examine(None)
    assert list(facts["versions"]) == ["psutil", "numpy", "absent-and-needed"]
    missing = [warning for warning in facts["warnings"] if "not installed" in warning]
    assert len(missing) == 1
    assert missing[0].startswith("not installed: absent-and-needed; run")


def test_a_wrong_isa_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHLLM_ISA", "z80")
    assert any("unset FLASHLLM_ISA" in warning for warning in examine(None)["warnings"])


def test_the_nearest_directory_that_exists(tmp_path: Path) -> None:
    assert existing_parent(tmp_path / "a" / "b") == tmp_path
    assert describe_storage(tmp_path)["mount_point"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["model"]["direct"] is None
    assert any("is it a converted model?" in warning for warning in facts["warnings"])
    assert list(tmp_path.iterdir()) == []
    assert main(["doctor", str(tmp_path)]) == 0
    assert "core name" in capsys.readouterr().out


def test_a_model_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path / "none")]) == 66
    assert "flashllm: " in capsys.readouterr().err
