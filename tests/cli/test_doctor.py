"""The doctor: facts from this machine, and the warnings that facts lead to."""

from __future__ import annotations

import copy
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest

from flashllm.cli.commands.doctor import examine
from flashllm.cli.commands.doctor_checks import (
    Check,
    find_checks,
    format_checks,
    warning_texts,
)
from flashllm.cli.main import main
from flashllm.system.filesystem import describe_storage, existing_parent

PROFILE: dict[str, Any] = {
    "date": "2026-01-01",
    "quick": False,
    "complete": True,
    "sequential_bytes_per_second": 2e9,
    "has_machine_rates": True,
}
PLAN: dict[str, Any] = {
    "name": "demo",
    "problem": None,
    "is_checkpoint": False,
    "size_bytes": 14_470_000,
    "smallest_ceiling_bytes": 309 << 20,
    "ceiling_bytes": 8 << 30,
    "is_ceiling_given": False,
    "fits": True,
    "tokens_per_second": 60.0,
    "assumed": None,
    "quick": True,
    "remarks": ["lossy: predictors choose neurons"],
    "verified": None,
}
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
    "device_name": "vda",
    "profile": PROFILE,
    "profile_problem": None,
}
HEALTHY: dict[str, Any] = {
    "core": {"name": "native", "fallback": None, "isa": "avx2", "problem": None},
    "memory": {"available_bytes": 8 << 30},
    "cache": HEALTHY_PLACE,
    "model": dict(HEALTHY_PLACE),
    "versions": {"torch": "2.13.0"},
}


NOT_OK = ("warning", "error")


def checks_with(section: str, **changes: object) -> list[Check]:
    facts = copy.deepcopy(HEALTHY)
    facts[section].update(changes)
    return [check for check in find_checks(facts) if check.level in NOT_OK]


def test_a_healthy_machine_has_no_warnings() -> None:
    checks = find_checks(HEALTHY)
    assert {check.level for check in checks} == {"ok"}
    topics = [check.topic for check in checks]
    assert topics == ["core", "memory", "disk", "model", "profile", "packages"]
    assert format_checks(checks).endswith("\nNothing to worry about.\n")
    assert warning_texts(checks) == []


@pytest.mark.parametrize(
    ("section", "changes", "level", "expected", "do"),
    [
        ("core", {"name": "numpy", "fallback": "not built"}, "warning", "not built", "pip install"),
        ("core", {"isa": "scalar"}, "warning", "no vector instructions", "unset FLASHLLM_ISA"),
        ("core", {"problem": "isa 'x' is not available"}, "error", "isa 'x'", "unset FLASHLLM_ISA"),
        ("memory", {"available_bytes": 300 << 20}, "warning", "only 300 MiB", "--memory"),
        ("cache", {"direct": False, "fallback": "EINVAL"}, "warning", "EINVAL", "a local disk"),
        ("cache", {"direct": None, "fallback": "not probed: x"}, "error", "x", "FLASHLLM_HOME"),
        ("model", {"direct": None, "fallback": "not probed: x"}, "error", "x", "converted model?"),
        ("model", {"network": True, "filesystem": "nfs4"}, "warning", "nfs4", "copy the model"),
        ("model", {"usb": True}, "warning", "USB", "internal"),
        ("model", {"profile_problem": "measured 91 days ago"}, "warning", "91 days ago", ""),
        ("cache", {"rotational": True}, "warning", "spinning", "SSD"),
        ("cache", {"free_bytes": 5 << 20}, "warning", "only 5.0 MiB are free", "make room"),
        ("versions", {"jinja2": None}, "error", "not installed: jinja2", "pip install flashllm"),
    ],
)
def test_each_trouble_is_told_with_what_to_do(
    section: str, changes: dict[str, object], level: str, expected: str, do: str
) -> None:
    (check,) = checks_with(section, **changes)
    assert check.level == level
    assert expected in check.what
    assert do in check.do
    (text,) = warning_texts([check])
    assert text.startswith(check.what)
    shown = " ".join(format_checks([check]).split())
    assert f"{level} {check.topic} {check.what}" in shown
    assert f"1 {level}; the line below" in shown


def test_a_disk_that_nobody_measured() -> None:
    for section, command in (
        ("cache", "flashllm bench io --quick"),
        ("model", "flashllm bench io --quick /models"),
    ):
        facts = copy.deepcopy(HEALTHY)
        facts["model"]["device_name"] = "vdb"  # on one disk with the cache, there is one line
        facts[section]["profile"] = None
        (check,) = [check for check in find_checks(facts) if check.level in NOT_OK]
        assert (check.level, check.topic, check.do, check.is_command) == (
            "warning", "profile", command, True
        )  # fmt: skip
        assert "speeds are unknown" in check.what
    facts = copy.deepcopy(HEALTHY)
    facts["model"]["profile"] = {**PROFILE, "quick": True, "has_machine_rates": False}
    text = format_checks(find_checks(facts))
    assert "vda: a quick profile of 2026-01-01, 2 GB/s in large reads; memory and kernels" in text


def plan_checks(**changes: object) -> list[Check]:
    facts = copy.deepcopy(HEALTHY)
    facts["plan"] = {**PLAN, **changes}
    return find_checks(facts)[len(find_checks(HEALTHY)) :]


def test_a_model_that_fits() -> None:
    fit, speed, remark, verified = plan_checks()
    assert {check.level for check in plan_checks()} == {"ok"}
    assert fit.what == (
        "13.8 MiB on disk, needs 309 MiB of memory at least and would get 8192 MiB, the available"
    )
    assert speed.what == "about 60 tokens a second in 8192 MiB, by a quick profile"
    assert remark.what == "lossy: predictors choose neurons"
    assert verified.do == "flashllm verify /models"
    (*_, checked) = plan_checks(verified="2026-03-04T05:06:07+00:00")
    assert checked.what == "every byte was checked on 2026-03-04"


def test_a_model_that_does_not_fit_or_is_none() -> None:
    fit = plan_checks(fits=False, smallest_ceiling_bytes=9 << 30, tokens_per_second=None)[0]
    assert (fit.level, fit.do) == ("error", "flashllm plan /models --memory 9216MiB")
    assert "more than the 8192 MiB that it would get" in fit.what
    speed = plan_checks(tokens_per_second=None)[1]
    assert (speed.level, speed.do) == ("warning", "flashllm bench io --quick /models")
    (broken,) = plan_checks(problem="no manifest.json", fits=None)
    assert (broken.level, broken.do) == ("error", "convert it again")
    (checkpoint,) = plan_checks(problem="no manifest.json", is_checkpoint=True)
    assert checkpoint.do == "flashllm convert /models /models.flash --dry-run"
    unknown = plan_checks(smallest_ceiling_bytes=None)[0]
    assert unknown.level == "warning"


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
    assert missing == ["not installed: absent-and-needed; `pip install flashllm`"]


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
    shown = capsys.readouterr().out
    assert shown.startswith("ok       core      native")
    assert "error    model" in shown


KEYS = {
    *("system", "core", "memory", "settings", "cache", "model", "plan", "versions"),
    *("warnings", "checks", "schema"),
}


def test_a_model_and_what_the_planner_says_of_it(
    sparse_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(sparse_model), "--memory", "1GiB", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert set(facts) == KEYS
    plan = facts["plan"]
    assert (plan["fits"], plan["ceiling_bytes"], plan["is_ceiling_given"]) == (True, 1 << 30, True)
    assert main(["ls", str(sparse_model), "--memory", "1GiB", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    row = next(row for row in rows if row["path"] == str(sparse_model))
    for name in ("smallest_ceiling_bytes", "tokens_per_second", "size_bytes", "features"):
        assert plan[name] == row[name]
    assert next(check for check in facts["checks"] if check["topic"] == "fit")["level"] == "ok"
    assert main(["doctor", str(sparse_model), "--memory", "1MiB", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["plan"]["fits"] is False
    assert any("more than the 1 MiB" in warning for warning in facts["warnings"])


def test_wrong_settings_are_a_line_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text("temp = true\n")
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert f"error    settings  {tmp_path}/config.toml:1" in shown
    assert "$ flashllm config edit" in shown


def test_a_model_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path / "none")]) == 66
    assert "flashllm: " in capsys.readouterr().err
