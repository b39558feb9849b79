"""Links of the documentation lead somewhere, and the log's two tables list its pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOG = ROOT / "docs" / "log"
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "flashllm/demo/README.md"]
)
_LINK = re.compile(r"\]\(([^)\s#]+)[^)]*\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    links = _LINK.findall(_CODE.sub("", page.read_text("utf-8")))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_files_of_the_glossary_exist() -> None:
    rows = [
        line.split("|")
        for line in (ROOT / "docs" / "glossary.md").read_text("utf-8").splitlines()
        if line.startswith("| ")
    ]
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row[3])]
    assert len(named) > 15
    assert [name for name in named if not (ROOT / "flashllm" / name).is_file()] == []


def test_the_index_and_the_table_of_the_log_list_every_page() -> None:
    head, *lines = (LOG / "results.tsv").read_text("utf-8").splitlines()
    assert head.split("\t") == ["date", "question", "change", "before", "after", "verdict", "page"]
    table = [line.split("\t") for line in lines]
    index = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (LOG / "README.md").read_text("utf-8").splitlines()
        if line.startswith("| [")
    ]
    assert [[f"[{row[0]}]({row[6]})", *row[1:6]] for row in table] == index
    pages = {path.name for path in LOG.glob("*.md")} - {"README.md"}
    assert {row[6] for row in table} == pages
    assert len(table) == len(pages)
    assert all(row[6].startswith(row[0]) for row in table)
