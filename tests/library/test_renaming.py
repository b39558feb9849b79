"""A model gets another name, in its place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flashllm.conversations.store import SessionStore
from flashllm.errors import DestinationExists, UsageError
from flashllm.library.names import ModelNames, usual_names
from flashllm.library.renaming import check_name, follow_in_conversations, rename_model

GOLDEN = Path(__file__).parents[1] / "flash" / "golden"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    shutil.copytree(GOLDEN / "converted", tmp_path / "home" / "models" / "big.flash")
    return tmp_path / "home" / "models"


def test_the_directory_has_the_name(home: Path) -> None:
    made = rename_model(home / "big.flash", "small", usual_names())
    assert made == home / "small.flash"
    assert usual_names().names() == ["demo", "demo-moe", "small"]
    assert rename_model(made, "small-2.flash", usual_names()) == home / "small-2.flash"
    shutil.move(home / "small-2.flash", home / "plain")
    assert rename_model(home / "plain", "plain.v2", usual_names()) == home / "plain.v2"


def test_a_name_that_is_taken(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "big.flash", tmp_path / "disk" / "other")
    names = ModelNames((home, tmp_path / "disk"))
    (home / "folder.flash").mkdir()
    for name in ("other", "folder", "big"):
        with pytest.raises(DestinationExists, match=f"{name}: is taken, by /"):
            rename_model(home / "big.flash", name, names)
    assert (home / "big.flash" / "manifest.json").exists()


@pytest.mark.parametrize(
    "name",
    ["demo", "demo-b8d695602985872e", "demo-moe", "demo-moe-b8d695602985872e", "a/b", "", ".", "..",
     "-x", "~x", "a b", "a\n", "\x1b[2J", "x.partial-1", "x" * 200],
)  # fmt: skip
def test_what_can_be_no_name(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "opt-6.7b", "Größe_2", "3"])
def test_what_can_be_a_name(name: str) -> None:
    check_name(name)


def test_conversations_follow(home: Path) -> None:
    assert follow_in_conversations(home / "big.flash", home / "small.flash") == 0  # no database
    with SessionStore() as store:
        mine = store.create(model=str(home / "big.flash"))
        other = store.create(model=str(home / "big.flash2"))
        changed = store.summary(mine).updated
    assert follow_in_conversations(home / "big.flash", home / "small.flash") == 1
    with SessionStore() as store:
        assert store.summary(mine).model == str(home / "small.flash")
        assert store.summary(mine).updated == changed
        assert store.summary(other).model == str(home / "big.flash2")
