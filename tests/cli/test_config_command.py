"""`flashllm config` and `flashllm path`."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from flashllm.cli.main import main
from flashllm.settings.defaults import default_config, in_force, to_toml
from flashllm.settings.file import read_config
from flashllm.settings.options import OPTIONS, Option
from flashllm.settings.resolve import OTHER_VARIABLES, load_settings


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
    assert rows["window"][-1] == "default"
    assert " ".join(rows["window"][:-1]).startswith("(where the policy is window")
    assert rows["policy"] == ['"blend"', "default"]
    assert rows["model"] == ['"demo"', "default"]
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
    told = {"value": 1 << 30, "in_force": 1 << 30, "origin": "flag", "place": "--memory"}
    assert values["memory"] == told
    assert values["chat.model_dirs"]["value"] == []
    assert values["overlap"]["value"] is None
    assert values["overlap"]["in_force"] is None
    assert values["keys.chat.help"] == {"value": "f9", "origin": "file", "place": f"{file}:2"}


def test_show_on_a_file_that_makes_no_sense(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir()
    (home / "config.toml").write_text('temp = "hot"\ntop_k = 5\nmemmory = "8GiB"')
    assert main(["config", "show", "--origin"]) == 0
    told = capsys.readouterr()
    assert ":1: temp: 'hot' is not a number (left out)" in told.err
    assert ":3: there is no setting 'memmory'; did you mean 'memory'" in told.err
    rows = {line.split()[0]: line.split()[1:] for line in told.out.splitlines()}
    assert rows["temp"] == ["0.0", "default"]
    assert rows["top_k"] == ["5", "file", f"{home / 'config.toml'}:2"]
    assert main(["config", "path"]) == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [('temp = "hot"', "'hot' is not a number"), ("temp = = 1", "is not TOML"), ("\xff", "UTF-8")],
)
def test_a_bad_file_stops_what_answers_and_nothing_else(
    text: str, problem: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.mkdir()
    (home / "config.toml").write_text(text, "latin-1")
    for command in (["ls", "--checkpoints"], ["show"], ["doctor"], ["config", "show"]):
        assert main(command) == 0, command
        told = capsys.readouterr()
        # The doctor has a line for it, among its others, which is broken where the path ends.
        words = told.out if command == ["doctor"] else told.err
        assert problem in " ".join(words.split()), command
    for command in (["run", "-p", "x"], ["chat"], ["eval"]):
        assert main(command) == 78, command
        assert problem in capsys.readouterr().err, command


def test_a_variable_that_does_not_exist_is_noticed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHLLM_MEMROY", "8GiB")
    monkeypatch.setenv("FLASHLLM_ZZZ", "1")
    assert main(["config", "show"]) == 0
    told = capsys.readouterr().err
    assert "FLASHLLM_MEMROY: there is no such variable; did you mean FLASHLLM_MEMORY?" in told
    assert "FLASHLLM_ZZZ: there is no such variable; it is ignored" in told


def test_every_variable_that_is_read_is_known() -> None:
    root = Path(__file__).parents[2] / "flashllm"
    sources = [path for path in root.rglob("*") if path.suffix in (".py", ".cpp")]
    read = {
        name
        for path in sources
        for name in re.findall(
            r'(?:environ\.get|environ|getenv)[(\[]"(FLASHLLM_[A-Z_]+)', path.read_text("utf-8")
        )
    }
    assert len(read) >= 4
    assert read <= {*OTHER_VARIABLES, *(option.variable for option in OPTIONS)}


def test_the_theme_that_is_told_is_textuals() -> None:
    from textual.constants import DEFAULT_THEME

    (theme,) = (option for option in OPTIONS if option.name == "theme")
    assert theme.usual == DEFAULT_THEME


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_the_first_file_has_the_defaults(option: Option) -> None:
    """Each line of the first file is what holds without it, or is said to be an example."""
    assert (in_force(option, option.default) is None) == bool(option.unset)
    if not option.in_file:
        return
    lines = default_config().splitlines()
    (at,) = (n for n, line in enumerate(lines) if line.startswith(f"# {option.name} = "))
    is_example = "An example:" in " ".join(lines[max(at - 3, 0) : at]).rpartition("# \n")[2]
    if option.unset:
        assert is_example
    else:
        assert lines[at] == f"# {option.name} = {to_toml(option, in_force(option, option.default))}"


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
    samples = {"memory": 3 << 29, "kv_memory": 3 << 20, "model_dirs": (Path("/a b"), Path('/"'))}
    samples |= {"kv_budget": 0.25, "kv_recall": 0.5, "device_memory": 3 << 20}
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
