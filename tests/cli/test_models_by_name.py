"""`flashllm show`, `rm`, `mv`, and names wherever a command takes a model."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from flashllm.cli.main import main
from flashllm.cli.shared import confirm
from flashllm.conversations.store import SessionStore
from flashllm.library import runtime_memory
from flashllm.units import MIB
from tests.library.test_hf_cache import put

GOLDEN = Path(__file__).parents[1] / "flash" / "golden"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's models: one called big."""
    for name in [name for name in os.environ if name.startswith("FLASHLLM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(runtime_memory, "_measure", lambda: 200 * MIB)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    shutil.copytree(GOLDEN / "converted", tmp_path / "home" / "models" / "big.flash")
    return tmp_path / "home" / "models"


def test_show_says_what_it_is_where_it_lies_and_what_it_needs(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.utime(home / "big.flash" / "manifest.json", (0, 86400.0))
    assert main(["show", "big"]) == 0
    told = capsys.readouterr().out
    rows = dict(line.split(None, 1) for line in told.splitlines() if not line.startswith(" "))
    assert rows["model"] == "big"
    assert rows["made"].startswith("from")
    assert "source, 1970-01-0" in rows["made"]
    assert rows["directory"] == str(home / "big.flash")
    assert rows["size"] == "38.9 KiB"
    assert rows["needs"].startswith("--memory ")
    assert main(["info", "big"]) == 0
    assert capsys.readouterr().out == told


def test_show_for_programs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "big", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["name"], values["made_from"]) == ("big", "source")
    assert values["directory"] == str(home / "big.flash")
    assert values["smallest_ceiling_bytes"] > 200 * MIB
    assert values["made_seconds"] == (home / "big.flash" / "manifest.json").stat().st_mtime
    assert values["spec"]["n_layers"] == 2


@pytest.mark.parametrize(
    "command",
    [
        ["show", "big"],
        ["info", "big", "--json"],
        ["verify", "big"],
        ["plan", "big", "--json"],
        ["plan", "org/tiny", "--json"],
        ["doctor", "big"],
        ["reorder", "big", "out", "--help"],
    ],
    ids=" ".join,
)
def test_commands_take_names(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "hub")
    if "--help" in command:
        with pytest.raises(SystemExit):
            main(command)
    else:
        assert main(command) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "code", "expected"),
    [
        (["run", "big", "-p", "x"], 2, "no tokenizer|without a tokenizer"),
        (["eval", "big"], 2, "there is nothing to evaluate on"),
        (["bench", "ablation", "big"], 2, "there is no text to decode"),
        (["bench", "cache", "big"], 2, "there is no text to record"),
        (["bench", "io", "big"], 2, "16 MiB or more"),
        (["bench", "io", "bg"], 66, "did you mean big?"),
        (["bench", "tokens", "bg"], 66, "did you mean big?"),
        (["chat", "bg"], 2, "needs a terminal"),
        (["reorder", "bg", "out"], 66, "did you mean big?"),
        (["verify", "bg"], 66, "did you mean big?"),
        (["convert", "big", "out"], 65, "a converted model already"),
        (["convert", "org/tyni"], 66, "did you mean org/tiny?"),
        (["run", "org/tiny", "x"], 65, "first: flashllm convert org/tiny"),
        (["show", "org/tiny"], 65, "first: flashllm convert org/tiny"),
    ],
    ids=str,
)
def test_names_reach_the_command(
    command: list[str],
    code: int,
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put(tmp_path / "hub")
    assert main(command) == code
    said = capsys.readouterr().err
    assert any(words in said for words in expected.split("|")), said


def test_the_model_of_settings_may_be_a_name(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLASHLLM_MODEL", "big")
    assert main(["show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "big"
    assert main(["ls"]) == 0
    assert (
        "cannot be opened" not in capsys.readouterr().out
    )  # no directory called big is looked for
    monkeypatch.setenv("FLASHLLM_MODEL", "bg")
    assert main(["show"]) == 66
    assert "did you mean big?" in capsys.readouterr().err


def test_a_checkpoint_of_the_cache_is_converted_among_the_models(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, snapshot = put(tmp_path / "hub")
    for path in snapshot.glob("tokenizer*"):  # random bytes
        path.unlink()
    assert main(["convert", "org/tiny", "--progress", "none"]) == 0
    assert capsys.readouterr().out == f"{home / 'tiny.flash'}\n"
    assert main(["show", "tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["made_from"] == "org/tiny"
    assert main(["convert", "org/tiny", "--progress", "none"]) == 0
    assert capsys.readouterr().out == f"{home / 'tiny-2.flash'}\n"


def test_rm_asks(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rm", "big"]) == 2
    assert "--yes goes on without asking" in capsys.readouterr().err
    asked: list[str] = []

    def answer(yes: bool) -> None:
        monkeypatch.setattr(
            "flashllm.cli.commands.rm.agreed", lambda text: asked.append(text) or yes
        )

    answer(False)
    assert main(["rm", "big"]) == 0
    assert "big was kept" in capsys.readouterr().err
    assert (home / "big.flash").exists()
    answer(True)
    assert main(["rm", "big"]) == 0
    assert not (home / "big.flash").exists()
    assert asked == 2 * [f"remove big ({home / 'big.flash'}, 40.7 KiB)?"]


def test_rm_removes_several(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(home / "big.flash", home / "second")
    (home / "second" / "mine.txt").touch()
    assert main(["rm", "big", "secnod", "--yes"]) == 66  # nothing goes where one is wrong
    assert (home / "big.flash").exists()
    assert main(["rm", "big", "second", "--yes"]) == 0
    said = capsys.readouterr().err
    assert f"{home / 'second'}: other files stay there: mine.txt" in said
    assert [path.name for path in home.iterdir()] == ["second"]


@pytest.mark.parametrize("name", ["demo", "demo-moe"])
def test_a_demo_is_removed_and_made_again(
    name: str,
    demo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = tmp_path / f"{name}-0123456789abcdef"
    monkeypatch.setattr("flashllm.flash.demo_places.demo_directory", {name: copy}.get)
    assert main(["rm", name, "--yes"]) == 66
    assert f"{name}: is not there yet; it is made when it is opened" in capsys.readouterr().err
    for text in (name, str(copy)):
        shutil.copytree(demo, copy)
        assert main(["rm", text, "--yes"]) == 0
        assert "it is made again when it is opened" in capsys.readouterr().err
        assert not copy.exists()


def test_the_demo_is_not_renamed(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("demo", "demo-moe"):
        assert main(["mv", name, "mine"]) == 2
        assert f"{name}: comes with flashllm" in capsys.readouterr().err
    assert (demo / "manifest.json").exists()


def test_mv(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with SessionStore() as store:
        number = store.create(model=str(home / "big.flash"))
    assert main(["mv", "big", "small"]) == 0
    assert capsys.readouterr().out == f"{home / 'small.flash'}\n"
    assert main(["sessions", "list"]) == 0
    assert "  small  " in capsys.readouterr().out
    with SessionStore() as store:
        assert store.summary(number).model == str(home / "small.flash")
    assert main(["mv", "small", "demo"]) == 2
    assert main(["mv", "small", "~/x"]) == 2


def test_questions_are_harmless(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return "Y\n"

    monkeypatch.setattr("sys.stdin", Terminal())
    assert confirm.agreed("remove \x1b[2J?")
    assert capsys.readouterr().err == "remove ? [y/N] "
