"""Writes docs/mistakes.md: `python tests/cli/mistakes/make.py` in the project's root.

`--before PROGRAM` first runs another version's `flashllm` and keeps what it says in before.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from tests.cli.mistakes import table  # noqa: E402

PAGE = ROOT / "docs" / "mistakes.md"
BEFORE = Path(__file__).with_name("before.json")
HEAD = """\
# Mistakes that lead on

What people type who know ollama, llm or llama.cpp, and what flashllm says to it: what was probably
meant, and what to type. `tests/cli/mistakes/make.py` runs each line and makes this page;
`tests/cli/test_mistakes.py` holds the last column and the exit codes against the program. "Before"
is flashllm 0.2.0; what is long is cut off (...).

In the directory are `checkpoint/` (config.json, model.safetensors), `mlx/`, `model.gguf`,
`model.onnx` and `weights.pt`; the model `big` is converted, and `org/tiny` is in the Hugging Face
cache. `CONFIG='...'` stands for a config.toml with that line.
"""


def page(now: Mapping[str, str], before: Mapping[str, str]) -> str:
    """The text of the page, from what each line came to."""
    parts = [HEAD]
    for title, mistakes in table.SECTIONS.items():
        rows = ["", f"## {title}", "", "| typed | said before | said now |", "| --- | --- | --- |"]
        for mistake in mistakes:
            typed = mistake.typed.replace("|", "\\|")
            cells = (f"`{typed}`", _cell(before.get(mistake.typed, "")), _cell(now[mistake.typed]))
            rows.append(f"| {' | '.join(cells)} |")
        parts.append("\n".join(rows) + "\n")
    return "".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _run_other(program: Path, root: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """What another version says to each line."""
    found = {}
    for mistake in table.MISTAKES:
        variables, words = table.typed_words(mistake.typed)
        with table.config_file(root, variables) as rest:
            done = subprocess.run(
                [program, *words],
                cwd=root / "work",
                env={**os.environ, **environment, **rest},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        found[mistake.typed] = table.said(done.returncode, done.stdout, done.stderr, root)
        _clean(root)
    return found


def _clean(root: Path) -> None:
    import shutil

    for made in (root / "work" / "out", root / "home" / "models" / "tiny.flash"):
        shutil.rmtree(made, ignore_errors=True)


def main() -> None:
    """Writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, metavar="PROGRAM", help="another version's flashllm")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        environment = table.build(root)
        if arguments.before is not None:
            _run_other(arguments.before, root, environment)  # converts the demo, which is told
            before = _run_other(arguments.before, root, environment)
            BEFORE.write_text(json.dumps(before, indent=1, ensure_ascii=False) + "\n", "utf-8")
        own = Path(sys.executable).with_name("flashllm")
        _run_other(own, root, environment)
        now = _run_other(own, root, environment)
    PAGE.write_text(page(now, json.loads(BEFORE.read_text("utf-8"))), "utf-8")


if __name__ == "__main__":
    main()
