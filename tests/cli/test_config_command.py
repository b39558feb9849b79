"""`flashllm config` and `flashllm path`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from flashllm.cli.main import main
from flashllm.settings.defaults import default_config, to_toml
from flashllm.settings.file import read_config
from flashllm.settings.options import OPTIONS
from flashllm.settings.resolve import load_settings


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith("FLASHLLM_") or name in ("VISUAL", "EDITOR"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, list[str]]:
    assert main(["config", "show", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {line.split()[0]: line.split()[1:] for line in lines}


def test_show_says_what_holds_and_who_said_so(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    file = home / "config.toml"
    file.write_text('memory = "8GiB"\ntemp = 0.1\n[chat]\ntheme = "nord"\n[keys]\n"a.b" = "f9"')
    monkeypatch.setenv("FLASHLLM_TOP_K", "5")
    rows = shown(capsys, "--origin", "--temp", "0.7", "--session", "x")
    assert rows["memory"] == ['"8GiB"', "file", f"{file}:1"]
    assert rows["temp"] == ["0.7", "flag", "--temp"]
    assert rows["top_k"] == ["5", "env", "FLASHLLM_TOP_K"]
    assert rows["window"] == ["-", "default"]
    assert rows["chat.theme"] == ['"nord"', "file", f"{file}:4"]
    assert rows["keys.a.b"] == ["f9", "file", f"{file}:6"]
    assert set(rows) == {option.key for option in OPTIONS} | {"keys.a.b"}
    assert shown(capsys)["memory"] == ['"8GiB"']


def test_show_as_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir()
    file = home / "config.toml"
    file.write_text('[keys]\n"chat.help" = "f9"')
    assert main(["config", "show", "--json", "--memory", "1GiB"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["memory"] == {"value": 1 << 30, "origin": "flag", "place": "--memory"}
    assert values["chat.model_dirs"] == {"value": [], "origin": "default", "place": ""}
    assert values["keys.chat.help"] == {"value": "f9", "origin": "file", "place": f"{file}:2"}


def test_show_on_a_file_that_makes_no_sense(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir()
    (home / "config.toml").write_text('temp = "hot"')
    assert main(["config", "show"]) == 78
    assert ":1: temp: 'hot' is not a number" in capsys.readouterr().err
    assert main(["config", "path"]) == 0


def test_the_first_file_sets_nothing_and_names_everything(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(default_config())
    assert read_config(file).values == {}
    assert read_config(file).keys == {}


def test_every_example_of_the_first_file_is_allowed(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    lines = default_config().splitlines()
    file.write_text("\n".join(line[2:] if " = " in line else line for line in lines))
    config = read_config(file)
    assert set(config.values) == {option.name for option in OPTIONS if option.in_file}
    assert {name: said.value for name, said in config.keys.items()} == {
        "chat.stop": "escape,ctrl+x"
    }


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.in_file], ids=lambda o: o.name)
def test_what_is_shown_can_be_written(option, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    samples = {"memory": 3 << 29, "model_dirs": (Path("/a b"), Path('/"'))}
    value = samples.get(option.name, option.default)
    if value is None:
        value = option.choices[0] if option.choices else option.parse("7")
    file = tmp_path / "config.toml"
    file.write_text(f"[{option.table}]\n" * bool(option.table))
    with file.open("a") as stream:
        stream.write(f"{option.name} = {to_toml(option, value)}")
    assert load_settings({}, file).value(option.name) == value


def editor(tmp_path: Path, code: str) -> str:
    program = tmp_path / "editor.py"
    program.write_text(f"import sys\nfile = sys.argv[-1]\n{code}\n")
    return f"{sys.executable} {program}"


def test_edit_makes_the_file_opens_and_checks_it(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "open(file, 'a').write('\"chat.help\" = \"f9\"\\n')"
    monkeypatch.setenv("EDITOR", "false")
    monkeypatch.setenv("VISUAL", editor(tmp_path, code))
    assert main(["config", "edit"]) == 0
    said = capsys.readouterr().err
    assert "with every setting as a remark" in said
    assert "in order: 1 set" in said
    assert main(["config", "edit"]) == 78  # the key is there twice now
    assert "is not TOML" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[chat]\ntheme = "nrod"', ":2: there is no theme 'nrod'; did you mean 'nord'?"),
        ('[keys]\n"chat.halp" = "f9"', ":2: [keys] 'chat.halp': there is no such action"),
    ],
)
def test_edit_checks_what_the_chat_alone_understands(
    text: str, said: str, home: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    home.mkdir()
    (home / "config.toml").write_text(text)
    monkeypatch.setenv("EDITOR", "true")
    assert main(["config", "edit"]) == 78
    assert f"{home}/config.toml{said}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("", "set EDITOR"),
        ("'", "No closing quotation"),
        ("/no/such/editor", "cannot be started: No such file"),
        ("false", "false ended with exit code 1"),
    ],
)
def test_edit_without_an_editor_says_how(
    command: str, said: str, home: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("EDITOR", command)
    assert main(["config", "edit"]) == 2
    assert said in capsys.readouterr().err
    assert (home / "config.toml").is_file()


def test_edit_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plain").write_text("")
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "plain"))
    monkeypatch.setenv("EDITOR", "true")
    assert main(["config", "edit"]) == 73
    assert "cannot be written" in capsys.readouterr().err
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / ("a" * 300)))
    assert main(["config", "edit"]) == 73
    assert "cannot be written: File name too long" in capsys.readouterr().err


def test_path_prints_one_or_all(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["path", "db"]) == 0
    assert capsys.readouterr().out == f"{home}/sessions.db\n"
    assert main(["path"]) == 0
    assert str(home / "flashllm.log") in capsys.readouterr().out
    assert not home.exists()
    assert main(["path", "moon"]) == 2
