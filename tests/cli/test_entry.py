"""What a process of the command line does before it reads its arguments."""

from __future__ import annotations

import sys

import pytest

from flashllm import __main__
from flashllm.system import malloc


@pytest.mark.parametrize(
    ("arguments", "is_terminal", "restarts"),
    [
        ([], True, 1),
        (["chat", "big"], True, 1),
        (["--memory", "1GiB"], True, 1),
        (["run", "chat"], True, 0),
        ([], False, 0),
    ],
)
def test_the_chat_starts_anew_before_all_else(
    arguments: list[str], is_terminal: bool, restarts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []
    monkeypatch.setattr("os.isatty", lambda _: is_terminal)
    monkeypatch.setattr(malloc, "restart_without_thread_caches", lambda: done.append("restart"))
    monkeypatch.setattr("flashllm.cli.main.main", lambda given: done.append(given) or 3)
    monkeypatch.setattr(sys, "argv", ["flashllm", *arguments])
    assert __main__.main() == 3
    assert __main__.main(["run"]) == 3
    assert done == [*["restart"] * restarts, arguments, ["run"]]
