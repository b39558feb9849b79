"""Lists the long files of the product, for `make check`: each is a question, not an error.

Is it one idea, or two? A file of one idea is not cut for its length.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("flashllm", "predictors", "tools", "benchmarks")
LINES_MAX = 400


def main() -> None:
    """A line for each file of more than LINES_MAX lines."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))]
    for path in paths:
        if path.suffix in (".py", ".pyi", ".h", ".cpp"):
            lines = len(path.read_text("utf-8").splitlines())
            if lines > LINES_MAX:
                print(f"{path.relative_to(ROOT)}: {lines} lines; is it two ideas?")


if __name__ == "__main__":
    main()
