"""The words of advice for a ceiling that is too small, typed as they are printed."""

from __future__ import annotations

import re

import pytest

from flashllm.cli.main import main


@pytest.mark.parametrize("gib", [1, 3, 6, 8, 12, 24])
@pytest.mark.parametrize("name", ["opt-125m", "opt-13b", "opt-66b", "llama-70b", "falcon-40b"])
def test_what_is_said_to_fit_fits(name: str, gib: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The words of the advice are typed, and accepted."""
    typed = ["plan", name, "--memory", f"{gib}GiB"]
    if main(typed) == 0:
        return
    said = capsys.readouterr().err

    tried = 0
    if found := re.search(r"Try (--memory \d+MiB)", said):
        assert main([*typed[:2], *found[1].split()]) == 0
        tried += 1
    if found := re.search(r"MiB, or ((?:--[\w-]+ \w+ ?)+)\.", said):
        assert main([*typed, *found[1].split()]) == 0
        tried += 1
    if found := re.search(r"Or weights [^:]*: ((?:--[\w-]+ \w+ ?)+), which needs", said):
        assert main([*typed, *found[1].split()]) == 0
        tried += 1
    else:
        assert "No encoding fits" in said
    assert tried >= 1


def test_a_context_is_advised_only_where_it_helps(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a process takes differs with what it has loaded, here by the tests before.
    monkeypatch.setattr("flashllm.engine.loading.interpreter_bytes", lambda: 240 << 20)
    assert main(["plan", "opt-13b", "--memory", "8GiB"]) == 71
    assert "--ctx-size" not in capsys.readouterr().err
    assert main(["plan", "opt-13b", "--memory", "9800MiB"]) == 71
    said = capsys.readouterr().err
    assert "or --ctx-size 512" in said or "or --kv-dtype int8" in said
