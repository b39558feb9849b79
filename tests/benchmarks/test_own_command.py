"""Commands run for benchmarks: what they print is read; when they fail, what they say is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.own_command import CommandError, ask, ask_module, ended
from flashllm.errors import UsageError


def test_a_report_is_read(sparse_model: Path) -> None:
    assert ask("info", str(sparse_model), "--json")["spec"]["n_layers"] == 3


def test_what_a_command_says_when_it_fails_is_told_with_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="there is no such directory") as failed:
        ask("info", str(tmp_path / "absent"), "--json")
    assert failed.value.exit_code == 66
    assert not str(failed.value).startswith("flashllm:")


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(CommandError, match="printed no JSON"):
        ask_module("flashllm", "--version")


def test_errors_of_ours_become_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise UsageError("no such thing\x1b[1m")

    def interrupt() -> int:
        raise KeyboardInterrupt

    assert ended("name", fail) == 2
    said = capsys.readouterr().err
    assert said.startswith("name: no such thing")
    assert "\x1b" not in said
    assert ended("name", interrupt) == 130
    assert ended("name", lambda: 3) == 3
