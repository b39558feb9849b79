"""`python -m benchmarks.first_hour`: its steps, in an installation that is there already."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import first_hour
from benchmarks.first_hour import LINES_MAX, QUESTIONS, Newcomer, Transcript


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    """In a folder where this project is, with an empty home."""
    (tmp_path / "flashllm").symlink_to(first_hour.REPOSITORY)
    return Newcomer(tmp_path, Transcript())


def test_each_step_is_timed_and_its_result_is_in_the_page(newcomer: Newcomer) -> None:
    first_hour.chat_on_the_demo(newcomer, f"{sys.executable} app.py")
    newcomer.command(f"{sys.executable} -m flashllm models")
    first_hour.chat_on_a_pulled_model(newcomer)
    newcomer.command(f"{sys.executable} -m flashllm ls")
    titles = [title for title, _ in newcomer.transcript.rows]
    assert all(seconds > 0 for _, seconds in newcomer.transcript.rows)
    assert {f"“{question}”" for question in QUESTIONS} < set(titles)
    page = newcomer.transcript.page("a machine")
    assert "lake (noun): a body of (usually fresh) water surrounded by land" in page
    assert "river (noun): " in page
    assert "qwen3-4b" in page
    assert "~/home/models/dictionary.flash" in page
    assert str(newcomer.folder) not in page


def test_a_command_that_fails_ends_it_with_its_words(newcomer: Newcomer) -> None:
    with pytest.raises(SystemExit, match=r"ended with 66:[\s\S]*no model"):
        newcomer.command(f"{sys.executable} -m flashllm show nothing")


def test_long_output_is_cut() -> None:
    transcript = Transcript()
    transcript.add("`long`", 1.25, "\n".join(str(line) for line in range(LINES_MAX + 3)))
    page = transcript.page("a machine")
    assert f"\n{LINES_MAX - 1}\n[3 more lines]\n" in page
    assert "| `long` | 1.2 |" in page
