"""A home that an earlier version made opens: settings, conversations, a profile, a model.

Made by 0.2.0: `config.toml` was written by hand, the database is that of `flashllm run --save` and
`--continue` (dumped as SQL, the model's path changed), the profile that of its `profile.save`.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from flashllm.cli.main import main
from flashllm.conversations.store import SessionStore
from flashllm.flash.store import Store
from flashllm.hardware import machine_profile
from flashllm.settings.resolve import load_settings

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "flash" / "golden" / "converted-0.2"


@pytest.fixture(params=["v0.2.0"])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "home"
    shutil.copytree(HERE / request.param, directory)
    dump = directory / "sessions.sql"
    connection = sqlite3.connect(directory / "sessions.db")
    connection.executescript(dump.read_text("utf-8"))
    connection.close()
    dump.unlink()
    shutil.copytree(GOLDEN, directory / "models" / "first.flash")
    monkeypatch.setenv("FLASHLLM_HOME", str(directory))
    return directory


def test_settings(home: Path) -> None:
    settings = load_settings({})
    assert settings.file == home / "config.toml"
    options = settings.model_options
    assert (options.memory, options.policy) == (600 << 20, "lru")
    assert (settings.value("temp"), settings.value("seed")) == (0.5, 3)
    assert (settings.chat.theme, settings.chat.system) == ("nord", "You are brief.")
    assert settings.keys["chat.help"].value == "f9"


@pytest.mark.usefixtures("home")
def test_conversations(capsys: pytest.CaptureFixture[str]) -> None:
    with SessionStore() as store:
        (summary,) = store.list()
        session = store.load(summary.id)
    texts = [turn.text for turn in session.conversation.path()]
    assert texts[0] == "What does ocean mean?"
    assert texts[3].startswith("river (noun): a large natural stream of water")
    answer = session.conversation.path()[1]
    assert len(answer.ids) == answer.numbers["tokens"] == 20
    assert main(["sessions", "show", "1"]) == 0
    assert "principal part of the hydrosp" in capsys.readouterr().out


def test_a_profile(home: Path) -> None:
    profile = machine_profile.load(home / "profiles" / "test.json")
    assert profile.complete
    assert profile.best_threads(4096) >= 1


def test_a_converted_model(home: Path) -> None:
    with Store(home / "models" / "first.flash") as store:
        assert store.load_resident(direct=False)


@pytest.mark.usefixtures("home")
def test_commands_that_read_it(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["config", "show"], ["ls"], ["sessions", "list"]):
        assert main(arguments) == 0, arguments
    assert "first" in capsys.readouterr().out
