"""`flashllm chat` up to the moment when the application takes over: what it is told."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashllm.cli.commands import chat
from flashllm.cli.main import main
from flashllm.cli.shared import open_model
from flashllm.conversations.store import SessionStore
from flashllm.conversations.tree import Turn
from flashllm.library.models import ModelChoice
from flashllm.system.log import stop_log
from flashllm.ui import run as run_module
from flashllm.ui.app import ChatApp


class Launcher:
    """Opens nothing."""

    def close(self, *arguments: object) -> None:
        pass


@pytest.fixture(autouse=True)
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path))
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(chat, "sys", SimpleNamespace(stdin=stream, stdout=stream))
    monkeypatch.setattr(open_model, "start_launcher", lambda arguments: Launcher())
    yield
    stop_log()
    gc.unfreeze()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ChatApp, dict[str, Any]]]:
    seen: list[tuple[ChatApp, dict[str, Any]]] = []

    def run_app(app: ChatApp, **keywords: Any) -> int:
        seen.append((app, keywords))
        app.chat.saving.close(1.0)
        return 0

    monkeypatch.setattr(run_module, "run_app", run_app)
    return seen


def test_settings_of_the_file_reach_the_application(
    tmp_path: Path, started: list[tuple[ChatApp, dict[str, Any]]]
) -> None:
    (tmp_path / "config.toml").write_text(
        'max_tokens = 9\ntemp = 0.5\n[chat]\ntheme = "nord"\nsystem = "Be brief."\n'
        'show_io = true\n[keys]\n"chat.help" = "f9"\n'
    )
    assert main(["chat", "--inline"]) == 0
    app, keywords = started[0]
    assert (app.chat.settings.show_io, app.chat.answer_settings.max_tokens) == (True, 9)
    assert app.chat.answer_settings.sampling.temperature == 0.5
    assert app.chat.conversation.system == "Be brief."
    assert (app.theme, app.chat.settings.theme) == ("nord", "nord")
    assert keywords["inline"] is True
    assert (tmp_path / "flashllm.log").is_file()
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("text", "arguments", "code", "said"),
    [
        ('[chat]\ntheme = "norf"', [], 78, "config.toml:2: there is no theme 'norf'; did you mean"),
        ("", ["--theme", "norf"], 2, "--theme: there is no theme 'norf'; did you mean 'nord'?"),
        ('[keys]\n"chat.halp" = "f9"', [], 78, "'chat.halp': there is no such action; did you"),
        ('[keys]\n"chat.help" = "f99"', [], 78, "config.toml:2: [keys] 'chat.help'"),
        ("", ["--session", "9"], 66, "there is no conversation '9'"),
        ("", ["--continue", "--no-save"], 2, "--no-save keeps nothing"),
    ],
)
def test_what_makes_no_sense_is_said_before_the_screen_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, arguments: list[str], code: int,
    said: str, started: list[tuple[ChatApp, dict[str, Any]]],
) -> None:  # fmt: skip
    (tmp_path / "config.toml").write_text(text)
    assert main(["chat", *arguments]) == code
    assert said in capsys.readouterr().err
    assert started == []


def test_it_goes_on_with_the_conversation_and_its_model(
    tmp_path: Path, started: list[tuple[ChatApp, dict[str, Any]]]
) -> None:
    with SessionStore() as store:
        kept = store.create(name="Rivers", model=str(tmp_path))
        store.save_turn(kept, Turn(1, None, "user", "What is a river?"))
        store.create(name="of 0.2.0: a message that was refused left it")
    assert main(["chat", "--continue"]) == 0
    app, _ = started[0]
    assert app.chat.session == kept
    assert app.chat.choice.path == tmp_path
    assert main(["chat"]) == 0
    assert started[1][0].chat.session is None
    assert started[1][0].chat.choice.path is None


def test_limits_go_to_the_chat_and_models_are_judged_by_those_that_it_has(
    started: list[tuple[ChatApp, dict[str, Any]]],
) -> None:
    assert main(["chat", "--memory", "1GiB", "--ctx-size", "256"]) == 0
    chat = started[0][0].chat
    settings = chat.answer_settings
    assert (settings.memory, settings.context) == (1 << 30, 256)
    assert chat.library is not None
    for memory, context in ((1 << 30, 256), (6 << 30, 4096)):  # as `/set` would
        settings.memory, settings.context = memory, context
        options = chat.library().given.options  # type: ignore[attr-defined]
        assert (options.memory, options.context) == (memory, context)


def test_the_model_of_a_conversation_may_have_any_name(
    started: list[tuple[ChatApp, dict[str, Any]]],
) -> None:
    with SessionStore() as store:
        kept = store.create(model="a" * 300)
        store.save_turn(kept, Turn(1, None, "user", "x"))
    assert main(["chat", "--continue"]) == 0
    assert started[0][0].chat.choice.path is None


@pytest.mark.parametrize(("arguments", "given"), [(["-s", "Be brief."], {"system"}), ([], set())])
def test_what_the_command_line_gives_is_known(
    arguments: list[str], given: set[str], started: list[tuple[ChatApp, dict[str, Any]]]
) -> None:
    assert main(["chat", *arguments]) == 0
    assert set(started[0][0].chat.answer_settings.given) == given


def test_no_save_keeps_nothing(
    tmp_path: Path, started: list[tuple[ChatApp, dict[str, Any]]]
) -> None:
    assert main(["chat", "--no-save"]) == 0
    assert started[0][0].chat.saving.path is None
    assert {file.name for file in tmp_path.iterdir()} == {"flashllm.log"}


def put_model(directory: Path) -> Path:
    """What looks like a converted model."""
    directory.mkdir(parents=True)
    (directory / "manifest.json").touch()
    return directory


def test_a_model_is_opened_by_its_name(
    tmp_path: Path, started: list[tuple[ChatApp, dict[str, Any]]]
) -> None:
    big = put_model(tmp_path / "models" / "big.flash")
    for words in (["big"], [str(big)], ["big.flash"]):
        assert main(["chat", *words]) == 0
        choice = started[-1][0].chat.choice
        assert (choice.path, choice.name) == (big, "big")
    for words in ([], ["demo"]):
        assert main(["chat", *words]) == 0
        choice = started[-1][0].chat.choice
        assert (choice.path, choice.name) == (None, "demo")
    assert main(["chat", "demo-moe"]) == 0
    assert started[-1][0].chat.choice == ModelChoice(None, "", "demo-moe")


def test_a_name_that_is_none_is_told_before_the_screen_is_drawn(
    tmp_path: Path,
    started: list[tuple[ChatApp, dict[str, Any]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    put_model(tmp_path / "models" / "big.flash")
    assert main(["chat", "bgi"]) == 66
    assert "did you mean big?" in capsys.readouterr().err
    assert started == []


@pytest.mark.parametrize("name", ["demo", "demo-moe"])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_conversation_with_a_demo_goes_on_with_todays(
    name: str, is_there: bool, tmp_path: Path, started: list[tuple[ChatApp, dict[str, Any]]]
) -> None:
    before = tmp_path / "models" / f"{name}-0123456789abcdef"
    if is_there:
        put_model(before)
    with SessionStore() as store:
        store.save_turn(store.create(model=str(before)), Turn(1, None, "user", "x"))
    assert main(["chat", "--continue"]) == 0
    choice = started[-1][0].chat.choice
    assert (choice.path, choice.name, choice.demo) == (None, name, name)
    with SessionStore() as store:
        assert store.summary(1).model == str(before)  # stored names keep theirs


def test_a_conversation_goes_on_with_its_model_by_one_name(
    tmp_path: Path, started: list[tuple[ChatApp, dict[str, Any]]]
) -> None:
    big = put_model(tmp_path / "elsewhere" / "big.flash")
    with SessionStore() as store:
        store.save_turn(store.create(model=str(big)), Turn(1, None, "user", "x"))
    assert main(["chat", "--continue"]) == 0
    choice = started[-1][0].chat.choice
    assert (choice.path, choice.name) == (big, "big")
