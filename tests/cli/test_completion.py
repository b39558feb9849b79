"""Shell completion: what bash offers with the script that is made from the parser."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flashllm.cli.completion.words import THEMES, Entry, describe
from flashllm.cli.main import main
from flashllm.cli.parser import COMMANDS, DEFAULT_COMMAND, build_parser
from flashllm.conversations.store import SessionStore
from flashllm.conversations.tree import Conversation
from flashllm.settings.options import MODEL_OPTIONS

BASH = shutil.which("bash") or ""


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return describe(build_parser(), DEFAULT_COMMAND)


def written(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def offered(script: str, folder: Path, *words: str) -> list[str]:
    """What bash offers for the last of the words, in a folder.

    An installed `flashllm` would be asked for models: there is none but what the script defines.
    """
    quoted = " ".join(f"'{word}'" for word in ("flashllm", *words))
    done = subprocess.run(
        [BASH, "--norc", "-c", f"{script}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words)}\n"
         "_flashllm flashllm; printf '%s\\n' \"${COMPREPLY[@]}\""],
        capture_output=True, text=True, cwd=folder, check=True,
        env={**os.environ, "PATH": os.defpath},
    )  # fmt: skip
    assert done.stderr == ""
    return [line for line in done.stdout.split("\n") if line]


@pytest.mark.skipif(not BASH, reason="no bash here")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ch"], ["chat"]),
        (["bench", ""], ["io", "tokens", "prompt", "ablation", "cache", "kv"]),
        (["config", "e"], ["edit"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["path", "d"], ["data", "db"]),
        (["chat", "--them"], ["--theme"]),
        (["--mem"], ["--memory"]),
        (["--theme", "nord", "--inl"], ["--inline"]),
        (["run", "--inl"], []),
        (["bench", "cache", "--tra"], ["--trace"]),
        (["bench", "io", "--keep"], ["--keep-doubtful"]),
        (["chat", "--policy", "l"], ["lru2", "lru"]),
        (["chat", "--policy", "=", "lru2"], ["lru2"]),
        (["chat", "--policy", "="], ["blend", "frequency", "lru2", "lru", "window"]),
        (["chat", "--temp", ""], []),
        (["chat", "--profile", ""], ["a file *.json", "big.flash"]),
        (["chat", "--profile", "a"], ["a file *.json"]),
        (["chat", "b"], ["big.flash"]),
        (["batch", "a"], ["a file *.json"]),
        (["batch", "rows", "a"], ["a file *.json"]),
        (["chat", ""], ["big.flash"]),
        (["convert", "--predictors", "t"], ["train"]),
        (["--theme", "gr"], ["gruvbox"]),
        (["convert", "--dtype", "bf"], ["bf16"]),
        (["run", "-p", "chat", "--inl"], []),
    ],
)
def test_bash_offers(
    words: list[str], expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "big.flash").mkdir()
    (tmp_path / "a file *.json").touch()
    assert sorted(offered(written("bash", capsys), tmp_path, *words)) == sorted(expected)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation with a name, and one without; what acts on a terminal is in both."""
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path))
    with SessionStore() as store:
        store.create(name="Long\x1b[2J rivers")
        conversation = Conversation()
        store.save_turn(store.create(), conversation.ask("A \x1b]0;t\x07sea?"))


@pytest.mark.usefixtures("kept")
def test_conversations_are_told_with_ids_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish", "--sessions"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert sorted(told) == ["1\tLong rivers", "2\tA sea?", "Long rivers\tconversation 1"]


def test_without_conversations_nothing_is_told_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    assert main(["completion", "bash", "--sessions"]) == 0
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "home").exists()


@pytest.mark.skipif(not BASH, reason="no bash here")
@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["chat", "--session", ""], ["1", "2", "Long rivers"]),
        (["sessions", "show", "L"], ["Long rivers"]),
    ],
)
def test_bash_offers_conversations(
    words: list[str], expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = f'flashllm() {{ "{sys.executable}" -m flashllm "$@"; }}\n'
    assert sorted(offered(program + written("bash", capsys), tmp_path, *words)) == expected


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model among those of the user, and a repository of the Hugging Face cache."""
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "home" / "models" / "my big.flash").mkdir(parents=True)
    (tmp_path / "home" / "models" / "my big.flash" / "manifest.json").touch()
    (tmp_path / "hub" / "models--org--tiny").mkdir(parents=True)


@pytest.mark.skipif(not BASH, reason="no bash here")
@pytest.mark.usefixtures("named")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["chat", "d"], ["demo", "demo-moe"]),
        (["rm", "m"], ["my big"]),
        (["mv", "my"], ["my big"]),
        (["convert", "o"], ["org/tiny"]),
        (["convert", "my"], []),
        (["plan", "my"], ["my big"]),
        (["plan", "org"], ["org/tiny"]),
        (["run", "de"], ["demo", "demo-moe"]),
    ],
)
def test_bash_offers_names_of_models(
    words: list[str], expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = f'flashllm() {{ "{sys.executable}" -m flashllm "$@"; }}\n'
    assert sorted(offered(program + written("bash", capsys), tmp_path, *words)) == expected


def test_fish_and_zsh_offer_what_a_value_can_be(capsys: pytest.CaptureFixture[str]) -> None:
    fish, zsh = written("fish", capsys), written("zsh", capsys)
    assert "-l session -x -a '(__flashllm_sessions)'" in fish
    assert "-l temp -x -d" in fish  # with -r alone, files would be offered
    assert "-l profile -r -F" in fish
    assert ":ID|NAME:_flashllm_sessions'" in zsh
    assert "::MODEL:{_files -/; _flashllm_names --models}'" in zsh
    assert "(__flashllm_names --models)'" in fish
    assert ":{compadd -- none train checkpoint; _files}'" in zsh


def test_themes_are_those_that_there_are() -> None:
    from textual.theme import BUILTIN_THEMES

    assert list(THEMES) == sorted(BUILTIN_THEMES)


@pytest.mark.skipif(not BASH, reason="no bash here")
def test_bash_offers_every_command_and_every_option(
    entries: list[Entry], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = written("bash", capsys)
    assert offered(script, tmp_path, "") == [command.name for command in COMMANDS]
    for entry in entries:
        assert offered(script, tmp_path, *entry.words, "-") == entry.spellings


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_the_shell_understands(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    script = tmp_path / "script"
    script.write_text(written(shell, capsys))
    done = subprocess.run([program, "-n", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_parser_is_read_in_full(entries: list[Entry]) -> None:
    by_path = {entry.path: entry for entry in entries}
    assert [name for name, _ in by_path[""].commands] == [command.name for command in COMMANDS]
    assert {flag for option in MODEL_OPTIONS for flag in option.flags} <= set(
        by_path["chat"].spellings
    )
    assert set(by_path["chat"].spellings) <= set(by_path[""].spellings)
    assert "--version" in by_path[""].spellings
    assert "--version" not in by_path["chat"].spellings
    places = {value.name: value.places for value in by_path["convert"].values}
    assert places == {"SRC": "checkpoints", "DST": "directories"}
    (model,) = by_path["rm"].values
    assert (model.places, model.repeats) == ("models", True)
    assert by_path["plan"].values[0].places == "sources"


def test_words_that_mean_something_to_a_shell_are_quoted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from flashllm.cli.completion import bash
    from flashllm.cli.completion import fish as completion_fish
    from flashllm.cli.completion import zsh as completion_zsh

    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    chat = commands.add_parser("chat", help='it\'s $(touch bad) `touch bad` "x" [y] a:b \\ 100%%')
    chat.add_argument("--how", choices=["a"], help="it's $(touch bad) `touch bad` [x]: \\ 100%%")
    entries = describe(parser, "chat")
    assert entries[1].flags[1].help.endswith("100%")
    scripts = {"bash": bash, "zsh": completion_zsh, "fish": completion_fish}
    for shell, module in scripts.items():
        if program := shutil.which(shell):
            script = tmp_path / shell
            script.write_text(module.script(entries, "chat"))
            prelude = "compdef() { :; }; " if shell == "zsh" else ""
            subprocess.run([program, "-c", f"{prelude}. {script}"], cwd=tmp_path, check=True)
    assert not (tmp_path / "bad").exists()
