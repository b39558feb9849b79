"""`flashllm sessions`: what it prints, what it writes, and what it never does unasked."""

from __future__ import annotations

import json
import resource
import sqlite3
import stat
from pathlib import Path

import pytest

from flashllm.cli.commands import sessions
from flashllm.cli.main import main
from flashllm.conversations import files
from flashllm.conversations.store import SessionStore
from flashllm.conversations.tree import Turn
from flashllm.errors import CannotCreate

HOSTILE = "\x1b]0;owned\x07\x9b2Jtitle\u202e"


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "sessions.db"


@pytest.fixture
def ocean(path: Path) -> int:
    with SessionStore(path) as store:
        number = store.create(name="Seas", model="/models/big.flash", system="Be brief.")
        store.save_turn(number, Turn(1, None, "user", "What is an ocean?"))
        store.save_turn(number, Turn(2, 1, "assistant", "Water. \x9b2J", (1, 2), "stop"))
    return number


def test_an_empty_list_says_how_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions", "list"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "`flashllm run --save`" in captured.err


def test_a_list_has_a_line_each(path: Path, ocean: int, capsys: pytest.CaptureFixture[str]) -> None:
    with SessionStore(path) as store:
        second = store.create()
        store.save_turn(second, Turn(1, None, "user", "Why \nis the \x1b[31msky blue?"))
        store.create(name=HOSTILE)
    assert main(["sessions", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["id", "changed", "messages", "model", "name"]
    assert [line.split()[0] for line in lines[1:]] == ["3", "2", "1"]
    assert lines[1].endswith(" " * 18 + "title")
    assert lines[2].endswith("       1" + " " * 18 + "Why is the sky blue?")
    assert lines[3].endswith("       2  big             Seas")
    assert main(["sessions", "search", "OCEAN"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["sessions", "list", "--limit", "2", "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["id"], one["turns"]) for one in shown] == [(3, 0), (2, 1)]
    assert main(["sessions", "list", "--limit", "9" * 20]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert main(["sessions", "search", "%"]) == 0
    assert "no conversation contains '%'" in capsys.readouterr().err


def test_show_is_markdown(ocean: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions", "show", "seas"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# Seas\n\n*/models/big.flash, ")
    assert out.endswith("\n\n> Be brief.\n\n## You\n\nWhat is an ocean?\n\n## Answer\n\nWater. \n")


def test_what_is_exported_is_imported_exactly(
    tmp_path: Path, path: Path, ocean: int, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ocean.json"
    assert main(["sessions", "export", str(ocean), "-o", str(file)]) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "\x9b" not in file.read_text("utf-8")
    assert main(["sessions", "import", str(file)]) == 0
    number = int(capsys.readouterr().out)
    with SessionStore(path) as store:
        assert store.export_json(number) == store.export_json(ocean)
        assert store.load(number).conversation.turns[2].text == "Water. \x9b2J"
    assert main(["sessions", "export", "Seas"]) == 2
    assert "give an id" in capsys.readouterr().err
    assert main(["sessions", "export", str(number)]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "Seas"


def test_an_export_writes_over_nothing_unasked(
    tmp_path: Path, ocean: int, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "notes.md"
    file.write_text("mine")
    assert main(["sessions", "export", "1", "-o", str(file)]) == 73
    assert file.read_text() == "mine"
    assert "--force" in capsys.readouterr().err
    assert main(["sessions", "export", "1", "-o", str(file), "--force"]) == 0
    assert file.read_text().startswith("# Seas\n")
    assert main(["sessions", "export", "1", "-o", str(file), "--force", "--format", "json"]) == 0
    assert json.loads(file.read_text())["turns"][0]["text"] == "What is an ocean?"
    assert main(["sessions", "export", "1", "-o", str(tmp_path / "no" / "x.md")]) == 73


def test_an_export_that_does_not_fit_leaves_what_was_there(tmp_path: Path) -> None:
    old, new, link = (tmp_path / name for name in ("old.json", "new.json", "link.json"))
    old.write_text("mine")
    old.chmod(0o644)
    link.symlink_to(old)
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, most[1]))
    try:
        for path, force in ((new, False), (link, True)):
            with pytest.raises(CannotCreate, match="File too large"):
                files.write(path, "x" * 200, force)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert old.read_text() == "mine"
    assert {*tmp_path.iterdir()} == {old, link}
    files.write(link, "x" * 200, force=True)
    assert link.is_symlink()
    assert old.read_text() == "x" * 200
    assert stat.S_IMODE(old.stat().st_mode) == 0o600  # nobody else reads a conversation
    with pytest.raises(CannotCreate, match="No space left"):
        files.write(Path("/dev/full"), "x", force=True)
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize(
    ("content", "code", "expected"),
    [(b"{", 65, "no JSON"), (b"{}", 65, "no conversation"), (None, 2, "cannot be read")],
)
def test_what_cannot_be_imported(
    tmp_path: Path,
    content: bytes | None,
    code: int,
    expected: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "x.json"
    if content is not None:
        file.write_bytes(content)
    assert main(["sessions", "import", str(file)]) == code
    captured = capsys.readouterr()
    assert expected in captured.err
    assert captured.err.count("\n") == 1


def test_names_change(path: Path, ocean: int) -> None:
    assert main(["sessions", "rename", "Seas", " Oceans "]) == 0
    with SessionStore(path) as store:
        assert store.summary(ocean).name == "Oceans"


def test_deleting_asks(
    path: Path,
    ocean: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sessions", "delete", "Seas", "99"]) == 66
    assert main(["sessions", "delete", "Seas"]) == 2
    assert "--yes" in capsys.readouterr().err
    asked: list[str] = []

    def answer(agreed: bool) -> None:
        monkeypatch.setattr(sessions, "agreed", lambda text: asked.append(text) or agreed)

    answer(False)
    assert main(["sessions", "delete", "1"]) == 0
    assert asked == ['delete "Seas" (conversation 1, 2 messages)?']
    with SessionStore(path) as store:
        assert store.summary(ocean).name == "Seas"
    answer(True)
    assert main(["sessions", "delete", "1", "seas"]) == 0
    with SessionStore(path) as store:
        assert store.list() == []


def test_a_damaged_conversation_can_be_deleted(
    path: Path, ocean: int, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE turn SET role = 'system', text = x'ff00'")
    connection.execute("UPDATE session SET name = x'ff', model = x'ff', updated = 'soon'")
    connection.close()
    assert main(["sessions", "list"]) == 0  # the others can still be found
    assert "1970-01-01" in capsys.readouterr().out
    assert main(["sessions", "show", "1"]) == 65
    assert "`flashllm sessions delete 1` removes it" in capsys.readouterr().err
    assert main(["sessions", "delete", "1", "--yes"]) == 0


def test_setting_aside_is_for_what_is_damaged(
    path: Path, ocean: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sessions", "set-aside"]) == 2
    assert "not damaged" in capsys.readouterr().err
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    assert main(["sessions", "list"]) == 65
    assert "`flashllm sessions set-aside`" in capsys.readouterr().err
    assert main(["sessions", "set-aside"]) == 0
    moved = Path(capsys.readouterr().out.splitlines()[0])
    assert moved.read_bytes() != whole
    assert not path.exists()
    assert main(["sessions", "list"]) == 0
    path.unlink()
    assert main(["sessions", "set-aside"]) == 2
