"""The commonest mistakes of people who know other programs lead on, as docs/mistakes.md says."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashllm.cli.parser import command_names
from flashllm.cli.run import prompt
from flashllm.cli.shared import foreign_words
from flashllm.settings.options import OPTIONS
from tests.cli.mistakes import make, table
from tests.cli.mistakes.table import MISTAKES, Mistake

PAGE = (Path(__file__).parents[2] / "docs" / "mistakes.md").read_text("utf-8")


@pytest.fixture(scope="module")
def root(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user, with the demo made, and the directory in which the lines are typed."""
    directory = tmp_path_factory.mktemp("mistakes")
    environment = table.build(directory)
    shutil.copytree(demo, directory / "home" / "models" / demo.name)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("FLASHLLM_")]:
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(prompt, "_has_piped_stdin", lambda wait: False)
        patch.chdir(directory / "work")
        yield directory


def now_cells() -> dict[str, str]:
    """The last column of the page, by what is typed."""
    rows = re.findall(r"^\| `(flashllm .*?|[A-Z_]+=.*?)` \| .* \| (.*) \|$", PAGE, re.MULTILINE)
    return {typed.replace("\\|", "|"): cell for typed, cell in rows}


def test_the_table_has_the_thirty_and_more() -> None:
    typed = [mistake.typed for mistake in MISTAKES]
    assert len(typed) == len(set(typed)) >= 30
    assert list(now_cells()) == typed
    assert list(json.loads(make.BEFORE.read_text("utf-8"))) == typed


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.typed)
def test_a_mistake_leads_on(mistake: Mistake, root: Path) -> None:
    code, out, err = table.run_here(mistake.typed, root)
    told = table.said(code, out, err, root)
    assert code == mistake.code, told
    for part in mistake.says:
        assert part in told
    assert "Traceback" not in err
    numbers = re.compile(r"\d+(?=[ .]?\d* [MG]iB|MiB)")  # of memory: they are the machine's
    shown = now_cells()[mistake.typed].replace("&lt;", "<").replace("\\|", "|")
    assert numbers.sub("N", shown) == numbers.sub("N", told)
    shutil.rmtree(root / "home" / "models" / "tiny.flash", ignore_errors=True)


def test_words_of_others_are_not_ours() -> None:
    assert not set(foreign_words.COMMANDS) & set(command_names())
    flags = {flag for option in OPTIONS for flag in option.flags}
    assert not set(foreign_words.OPTIONS) & flags
    assert {name for name, _ in foreign_words.PAIRS} <= flags


def test_what_is_advised_exists() -> None:
    """Commands and options that the sentences name; some commands are made elsewhere."""
    sentences = " ".join([*foreign_words.COMMANDS.values(), *foreign_words.OPTIONS.values()])
    named = set(re.findall(r"`flashllm ([a-z]+)", sentences))
    assert named <= {*command_names(), "pull", "models"}
    flags = {flag for option in OPTIONS for flag in option.flags}
    asked = set(re.findall(r"did you mean (--[a-z-]+)", sentences))
    assert asked <= flags | {"--json", "--system"}
