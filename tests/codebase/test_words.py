"""Families are data: their names occur in the tables of the converter, and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAMILIES = re.compile(
    r"\b(opt|falcon|llama(?!\.cpp)|mixtral)\b|(OPT|Opt|Falcon|Llama|Mixtral)[A-Z][a-z]\w*"
)
FOLDERS = ("flashllm", "predictors", "tools/convert")
ALLOWED = {
    "tools/convert/families/families.py",
    "tools/convert/families/experts.py",
    "tools/convert/families/gated.py",
    "tools/convert/families/gguf_architectures.py",
    "tools/convert/families/gguf_vocabularies.py",
}


def sources() -> list[str]:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    return sorted(
        str(path.relative_to(ROOT))
        for path in paths
        if path.suffix in (".py", ".pyi", ".h", ".cpp") and "demo" not in path.parts
    )


def test_families_are_named_in_their_tables_only() -> None:
    naming = {
        source: sorted({match.group() for match in FAMILIES.finditer(text)})
        for source in sources()
        if FAMILIES.search(text := (ROOT / source).read_text("utf-8"))
    }
    assert naming.keys() == ALLOWED, naming
