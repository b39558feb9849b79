"""Settings: which place wins, and what is said of a config.toml that makes no sense."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from flashllm.cli.main import main, parse
from flashllm.errors import ConfigError, UsageError
from flashllm.settings.file import Said
from flashllm.settings.options import CHAT_OPTIONS, OPTIONS
from flashllm.settings.resolve import ChatSettings, load_settings
from flashllm.system import paths


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path))
    return tmp_path


def write(home: Path, text: str) -> Path:
    file = home / "config.toml"
    file.write_text(text)
    return file


EVERYTHING = """\
model = "~/x.flash"
memory = "8GiB"   # a size
temp = 0.7
top_k = 40
io_threads = 4
no_direct = true
policy = "lru2"

[chat]
theme = "nord"
system = "Be brief."
show_io = true
model_dirs = ["~/models", "/data"]

[keys]
"chat.stop" = "ctrl+x"
chat.help = "f9"
"""


def test_a_file_is_read_with_its_types(home: Path) -> None:
    settings = load_settings({}, write(home, EVERYTHING))
    assert settings.value("model") == str(Path.home() / "x.flash")
    assert settings.value("memory") == 8 << 30
    assert (settings.value("temp"), settings.value("top_k")) == (0.7, 40)
    assert (settings.value("no_direct"), settings.value("policy")) == (True, "lru2")
    assert settings.chat == ChatSettings(
        system="Be brief.",
        theme="nord",
        show_io=True,
        model_dirs=(Path.home() / "models", Path("/data")),
    )
    assert settings.keys == {
        "chat.stop": Said("ctrl+x", f"{home}/config.toml:16"),
        "chat.help": Said("f9", f"{home}/config.toml:17"),
    }
    assert settings.place("memory") == f"{home}/config.toml:2"
    assert settings.place("theme") == f"{home}/config.toml:10"


def test_a_flag_beats_the_environment_that_the_file_and_that_the_default(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (parse(["chat"]).max_tokens, parse(["chat"]).theme) == (512, "")
    write(home, 'max_tokens = 1\n[chat]\ntheme = "nord"\n')
    assert (parse(["chat"]).max_tokens, parse(["chat"]).theme) == (1, "nord")
    monkeypatch.setenv("FLASHLLM_MAX_TOKENS", "2")
    monkeypatch.setenv("FLASHLLM_THEME", "gruvbox")
    assert (parse(["chat"]).max_tokens, parse(["chat"]).theme) == (2, "gruvbox")
    parsed = parse(["chat", "-n", "3", "--theme", "dracula"])
    assert (parsed.max_tokens, parsed.theme) == (3, "dracula")
    origins = [parsed.settings.origin(name) for name in ("max_tokens", "theme", "temp")]
    assert origins == ["flag", "flag", "default"]
    assert parsed.settings.chat.theme == "dracula"


def test_what_the_file_says_of_the_chat_is_for_the_chat(home: Path) -> None:
    write(home, '[chat]\nsystem = "Be brief."\n')
    assert parse(["chat"]).system == "Be brief."
    assert parse(["run"]).system == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('temp = 1\nmemory = "plenty"', ":2: memory: 'plenty' is not a size; write it like 4GiB"),
        ("temp = -1", ":1: temp: '-1' is out of range; expected 0 or more"),
        ("temp = true", ":1: temp: True is not a number"),
        ("temp = nan", ":1: temp: 'nan' is not a number"),
        ("top_p = 0", ":1: top_p: '0' is out of range; expected above 0, at most 1"),
        ("memory = [1]", ":1: memory: [1] is not a number"),
        ("seed = 18446744073709551616", ":1: seed: '18446744073709551616' is too large"),
        ("window = 2.5", ":1: window: '2.5' is not a whole number"),
        ("model = 3", ":1: model: 3 is not text in quotes"),
        ('policy = "best"', "policy: 'best' is unknown; expected one of blend, frequency, lru2"),
        ("policy = 3", "policy: 3 is not text in quotes; expected one of blend"),
        ('no_direct = "yes"', "no_direct: 'yes' is neither true nor false (without quotes)"),
        ("[chat]\n\ntheme = 1", ":3: chat.theme: 1 is not text in quotes"),
        ("[chat]\nmodel_dirs = [1]", ":2: chat.model_dirs: [1] is no list of folders"),
        ("chat = 3", ":1: there is no setting 'chat'"),
        ("[keys]\n'chat.stop' = 3", ":2: keys.chat.stop: expected keys in quotes"),
        ("[keys]\n'chat.stop' = ''", ":2: keys.chat.stop: expected keys in quotes"),
        ("memroy = 1", ":1: there is no setting 'memroy'; did you mean 'memory'?"),
        ('\ntheme = "nord"', ":2: there is no setting 'theme'; did you mean 'theme' (in the table"),
        ("[chat]\ntemp = 1", "'chat.temp'; did you mean 'temp' (above all tables)?"),
        ("[chat]\nthem = 1", ":2: there is no setting 'chat.them'; did you mean 'theme'?"),
        ("[colours]\nx = 1", ":1: there is no setting 'colours'; `flashllm config show` lists"),
        ("session = 'x'", "there is no setting 'session'"),
        ("temp = ", "is not TOML: "),
        ("temp = 1\ntemp = 2", "is not TOML: "),
        ("x = " + "[" * 5000, "is not TOML: "),
        pytest.param("seed = " + "9" * 5000, "is not TOML: ", id="5000 digits"),
        pytest.param("seed = 0x" + "f" * 5000, "has a number of more than 128 bits", id="hex"),
        pytest.param("seed = [[0x" + "f" * 5000 + "]]", "a number of more than", id="inner hex"),
        pytest.param("keys" + ".a" * 5000 + " = 1", "has more than 32 tables in each", id="dots"),
    ],
)
def test_a_wrong_file_is_an_error_that_says_where_and_what_is_allowed(
    home: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    file = write(home, text)
    assert main(["run", "-p", "x"]) == ConfigError.exit_code == 78
    shown = capsys.readouterr().err
    assert shown.startswith(f"flashllm: {file}")
    assert said in shown
    assert shown.count("\n") == 1


def test_a_file_that_cannot_be_read_is_an_error(home: Path) -> None:
    file = home / "config.toml"
    file.write_bytes(b"temp = 1 # \xff")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_settings({}, file)
    with pytest.raises(ConfigError, match="cannot be read: "):
        load_settings({}, home)
    file.write_text("#" * (1 << 20) + "#")
    with pytest.raises(ConfigError, match="longer than 1 MiB"):
        load_settings({}, file)


def test_no_file_and_no_folder_are_the_defaults(home: Path) -> None:
    for file in (home / "absent.toml", home / "absent" / "config.toml"):
        assert load_settings({}, file).origin("memory") == "default"
    (home / "plain").write_text("")
    assert load_settings({}, home / "plain" / "config.toml").origin("memory") == "default"


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(UsageError, match="FLASHLLM_TEMP: '-1' is out of range; expected 0 or more"):
        load_settings({"FLASHLLM_TEMP": "-1"})


def test_a_command_without_settings_works_whatever_they_say(home: Path) -> None:
    write(home, "memory = ")
    assert parse(["reorder", "a", "b"]).source == "a"


def test_names_are_unique_and_the_chat_knows_all_of_its_own() -> None:
    names = [option.name for option in OPTIONS]
    assert len(names) == len(set(names))
    defaults = {option.name: option.default for option in CHAT_OPTIONS}
    assert defaults == {field.name: field.default for field in fields(ChatSettings)}


def test_names_that_are_allowed_are_those_that_the_engine_knows() -> None:
    from typing import get_args

    from flashllm.options import (
        ARITHMETICS,
        EFFORTS,
        KV_DTYPES,
        KV_POLICIES,
        KV_VICTIMS,
        POLICIES,
        PROMPT_NEURONS,
        SELECTORS,
        THINKS,
        VERIFIES,
        Overlap,
    )

    choices = {option.name: option.choices for option in OPTIONS if option.choices}
    assert choices == {
        "policy": POLICIES,
        "kv_dtype": KV_DTYPES,
        "kv_policy": KV_POLICIES,
        "kv_victims": KV_VICTIMS,
        "select": SELECTORS,
        "overlap": get_args(Overlap),
        "verify": VERIFIES,
        "prompt_neurons": PROMPT_NEURONS,
        "arithmetic": ARITHMETICS,
        "think": THINKS,
        "effort": EFFORTS,
    }


def test_paths_lie_below_the_home_that_is_set(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = (
        paths.config_file, paths.data_dir, paths.database_file, paths.cache_dir, paths.log_file,
        paths.models_dir, paths.history_file,
    )  # fmt: skip
    assert all(place().is_relative_to(home) for place in places)
    assert list(home.iterdir()) == []
    monkeypatch.delenv("FLASHLLM_HOME")
    assert all("flashllm" in str(place()) for place in places)
    assert paths.config_file() != paths.data_dir() / "config.toml"
