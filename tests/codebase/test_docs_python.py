"""The examples of docs/python.md and of README run as they stand, and pass mypy in strict mode."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import flashllm
from flashllm.engine.generation import Generation
from flashllm.engine.local import AnswerOptions
from flashllm.errors import FlashllmError
from flashllm.options import DEFAULT_MAX_TOKENS, ModelOverrides

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "python.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    page: Path
    line: int
    code: str

    @property
    def name(self) -> str:
        return f"{self.page.stem.lower()}_{self.line}"


def examples() -> list[Example]:
    found = []
    for page in (PAGE, ROOT / "README.md"):
        text = page.read_text("utf-8")
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start(1)) + 1
            # Errors name the line of the page.
            found.append(Example(page, line, match[1]))
    return found


EXAMPLES = examples()


def test_there_are_examples_on_both_pages() -> None:
    assert {example.page.name for example in EXAMPLES} == {"python.md", "README.md"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_it_runs(
    example: Example,
    demo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The demo stands for the models that they name.
    monkeypatch.setattr("flashllm.convert.demo_model", lambda *_: demo)
    for name in re.findall(r'open_model\("([^"]+)"', example.code):
        (tmp_path / name).symlink_to(demo)
    monkeypatch.chdir(tmp_path)
    code = "\n" * (example.line - 1) + example.code
    exec(compile(code, str(example.page), "exec"), {"__name__": "example"})
    assert capsys.readouterr().out.strip(), "it shows something"


def test_all_pass_mypy_in_strict_mode(tmp_path: Path) -> None:
    for example in EXAMPLES:
        (tmp_path / f"{example.name}.py").write_text(example.code, "utf-8")
    # With the project's own configuration, which is strict, what it has checked already is reused.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *map(str, sorted(tmp_path.glob("*.py")))],
        capture_output=True, text=True, timeout=540, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def table_below(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    section = PAGE.read_text("utf-8").split(f"\n## {heading}\n")[1]
    lines = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names_in(cells: list[str]) -> set[str]:
    return {name for cell in cells for name in re.findall(r"`(\w+)(?:\(\))?`", cell)}


def test_the_table_of_an_answer_names_what_it_has() -> None:
    told = names_in([row[0] for row in table_below("Token by token")])
    assert {name for name in told if not hasattr(Generation, name)} <= {
        "text", "ids", "finish_reason", "dropped_messages",
    }  # fmt: skip


def test_the_tables_of_keywords_are_complete() -> None:
    page = PAGE.read_text("utf-8")
    keywords = page.split("take the same keywords:")[1].split("\n## ")[0]
    rows = [
        line.split("|")[1].strip().strip("`") for line in keywords.splitlines()[4:] if "|" in line
    ]
    assert set(rows) == set(AnswerOptions.__annotations__)
    assert f"| `max_tokens` | {DEFAULT_MAX_TOKENS} |" in page
    told = names_in([row[0] for row in table_below("Options of a model")])
    # What the chat's own process takes is no option for Python code.
    assert told == set(ModelOverrides.__annotations__) - {"application_bytes"}


def test_the_errors_are_ours() -> None:
    for row in table_below("Errors"):
        for name in names_in(row[:1]):
            assert issubclass(getattr(flashllm.errors, name), FlashllmError)
