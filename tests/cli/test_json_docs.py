"""docs/json.md and what commands print for programs: the same fields, of the same types.

A command that is not in CASES and has `--json` fails `test_every_command_has_its_tables`: give it
tables in docs/json.md, and a line of CASES that makes it print all of its fields.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

import flashllm
from flashllm import core
from flashllm.bench import header
from flashllm.bench.disk import fit
from flashllm.bench.disk import sweep as io_sweep
from flashllm.bench.disk.fio import FioResult
from flashllm.bench.tokens import machine_probe, machine_rates
from flashllm.cli.main import main
from flashllm.cli.parser import build_parser
from flashllm.json_schema import JSON_SCHEMA
from flashllm.library import runtime_memory
from flashllm.units import MIB
from tests.library.test_download import use_hub
from tests.library.test_hf_cache import put
from tests.support.checkpoints import write_checkpoint
from tests.support.hub_server import serving
from tests.support.json_page import PAGE, Page, read_page
from tests.support.profiles import RATES
from tests.support.tiny import tiny
from tests.support.token_fakes import FakeProbe

DEMO = Path(flashllm.__file__).parent / "demo"
TEXT, CHOICES = DEMO / "heldout.jsonl", DEMO / "choices.jsonl"
SAY = ["-p", "What does ocean mean?", "-n", "6"]
BLOCK = ["--batch", "--prompt-len", "512", "--new-tokens", "32"]
SCAN = ["--sizes", "4KiB,16KiB", "--threads", "1,32", "--seconds", "0.02", "--runs", "2"]

CASES: dict[str, list[str]] = {
    "run --json": [
        "run {demo} {say} --json",
        "run {demo} {say} --json --save",
        "run {demo} {say} --json --kv-memory 2MiB",
        "run {demo} {say} --json --device cpu-torch --device-memory 300MiB",
    ],
    "run --jsonl": ["run {demo} {say} --jsonl"],
    "batch --json": ["batch {rows} {answers} {demo} -n 6 --overwrite --json"],
    "info --json": [
        "info {demo} --json",
        "info {demo} --plan --json",
        "info {rotary} --json",
        "info {olmoe} --json",
        "info {granitemoe} --json",
        "info {mellum} --json",
    ],
    "verify --json": ["verify {demo} --json", "verify {damaged} --json"],
    "ls --json": ["ls {models} --memory 1GiB --json"],
    "ls --checkpoints --json": ["ls --checkpoints --json"],
    "models --json": ["models --all --json"],
    "show --json": ["show {demo} --plan --json"],
    "pull --json": [
        "pull org/tiny --dry-run --memory 8GiB --json",
        "pull org/tiny --convert {new} --json",
        "pull org/tiny --json",
    ],
    "plan --json": [
        "plan opt-6.7b --memory 8GiB --json",
        "plan opt-6.7b --memory 8GiB --profile {profile} --json",
        "plan {demo} --json --kv-memory 2MiB",
    ],
    "plan --batch --json": [
        "plan opt-1.3b {block} --machine t4-paper --policy 4,1,100,0,100,0,100,0 --json",
        "plan opt-30b {block} --machine t4-paper --policy 48,9,20,80,0,100,0,100 --json",
        "plan opt-1.3b {block} --machine t4-paper --memory 4GiB --compress --json",
        "plan opt-1.3b {block} --machine {profile} --memory 3GiB --policy 1,1,0,0,0,100,0,100"
        " --json",
    ],
    "doctor --json": ["doctor --json", "doctor {demo} --json"],
    "eval --json": [
        "eval {demo} --text {text} --tokens 600 --tasks {choices} --tasks {text} --limit 5 --json",
        "eval {demo} --text {text} --tokens 600 --select all --json",
        "eval {demo} --text {text} --tokens 600 --select oracle --json",
    ],
    "bench io --json": [
        "bench io {file} {scan} --json",
        "bench io {file} {scan} --json --no-machine",
    ],
    "bench tokens --json": ["bench tokens {demo} -n 4 --runs 2 --json"],
    "bench tokens --jsonl": [
        # So many tokens that all percentiles are given.
        "bench tokens {sparse} --ids 5,17,40 -n 130 --runs 8 --jsonl",
    ],
    "bench prompt --json": ["bench prompt {demo} --lengths 5 --runs 2 --json"],
    "bench ablation --json": ["bench ablation {demo} --text {text} -n 4 --runs 2 --add --json"],
    "bench cache --json": [
        "bench cache {demo} --text {text} --tokens 300 --slots 20% --memory 2GiB --json"
    ],
    "bench kv --json": ["bench kv {demo} --text {text} -n 300 --kv infinigen --budget 20% --json"],
    "inspect similarity --json": [
        "inspect similarity {demo} --text {text} -n 300 --spec-start-layer 1 --json"
    ],
    "calibrate --json": ["calibrate {demo} --text {text} --tokens 300 --json"],
    "sessions list --json": ["sessions list --json"],
    "sessions search --json": ["sessions search ocean --json"],
    "config show --json": ["config show --temp 0.7 --json"],
    "convert --progress jsonl": ["convert {source} {new} --progress jsonl"],
}
LINES = {
    "run --jsonl": ("token", "summary"),
    "bench tokens --jsonl": ("header", "token", "run", "probe", "summary"),
    "convert --progress jsonl": ("plan", "phase", "warning", "end", "summary"),
}
"""Commands with lines of several types."""
SAME = {"sessions search --json": "sessions list --json", "show --json": "info --json"}
"""Commands that print what another one does."""
ERRORS = {"convert --progress jsonl"}
"""Commands that print it on standard error."""


@pytest.fixture(scope="module")
def page() -> Page:
    return read_page()


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user of its own, on a machine that needs no minutes to be measured."""
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(runtime_memory, "_measure", lambda: 200 * MIB)
    monkeypatch.setattr(machine_probe, "MachineProbe", FakeProbe)
    monkeypatch.setattr("flashllm.bench.tokens.runs._further_pairs", lambda *_: iter(()))
    monkeypatch.setattr(fit, "reason_to_doubt", lambda _: "")
    monkeypatch.setattr(header, "git_state", lambda _: {"commit": "0" * 40, "modified": False})
    monkeypatch.setattr(machine_rates, "measure_rates", lambda: RATES)
    monkeypatch.setattr("flashllm.bench.disk.fio.find_fio", lambda: "fio")
    monkeypatch.setattr(
        io_sweep,
        "run_fio",
        lambda _fio, _path, size, threads, _seconds: FioResult(size, threads, 8e8, {"p50": 1}),
    )


@pytest.fixture
def places(tmp_path: Path, demo: Path, sparse_model: Path) -> Places:
    return Places(tmp_path, demo, sparse_model)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub on the loopback that has `org/tiny`."""
    with serving() as running:
        running.add("org/tiny", write_checkpoint(tmp_path / "remote"))
        use_hub(monkeypatch, running, tmp_path)
        yield
        huggingface_hub.close_session()


TWO_KINDS: dict[str, Any] = {
    "moe_intermediate_size": 24,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "sliding_window": 9,
    "layer_types": ["sliding_attention", "full_attention"],
}


class Places:
    """What the words in braces of CASES stand for; made when asked for."""

    def __init__(self, folder: Path, demo: Path, sparse: Path) -> None:
        self._folder = folder
        self._words: dict[str, Callable[[], list[str]]] = {
            "demo": lambda: [str(demo)],
            "sparse": lambda: [str(sparse)],
            "say": lambda: SAY,
            "scan": lambda: SCAN,
            "block": lambda: BLOCK,
            "text": lambda: [str(TEXT)],
            "choices": lambda: [str(CHOICES)],
            "models": lambda: [str(demo.parent)],
            "rows": lambda: [str(self._rows())],
            "answers": lambda: [str(folder / "answers.jsonl")],
            "damaged": lambda: [str(self._damaged(demo))],
            "rotary": lambda: [str(self._rotary())],
            "olmoe": lambda: [str(self._experts("olmoe", intermediate_size=24))],
            "granitemoe": lambda: [
                str(self._experts("granitemoe", intermediate_size=24, attention_multiplier=0.5))
            ],
            "mellum": lambda: [str(self._experts("mellum", **TWO_KINDS))],
            "profile": lambda: [str(self._profile())],
            "file": lambda: [str(self._file())],
            "source": lambda: [str(self._warns())],
            "new": lambda: [str(folder / "new")],
        }

    def arguments(self, case: str) -> list[str]:
        found = []
        for word in case.split():
            name = re.fullmatch(r"\{(\w+)\}", word)
            found += self._words[name[1]]() if name else [word]
        return found

    def _rows(self) -> Path:
        rows = self._folder / "rows.jsonl"
        rows.write_text('{"prompt": "What does ocean mean?"}\n')
        return rows

    def _damaged(self, demo: Path) -> Path:
        damaged = self._folder / "damaged"
        shutil.copytree(demo, damaged)
        with (damaged / "ffn.bundles").open("r+b") as file:
            file.seek(100_000)
            file.write(b"?" * 64)
        return damaged

    def _rotary(self) -> Path:
        from flashllm.convert import convert

        tiny("llama", intermediate_size=48).save_pretrained(self._folder / "llama")
        convert(self._folder / "llama", self._folder / "rotary", dtype="int8", resident_dtype="f16")
        return self._folder / "rotary"

    def _experts(self, model_type: str, **sizes: Any) -> Path:
        from flashllm.convert import convert

        source = self._folder / f"{model_type}-source"
        experts = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
        tiny(model_type, **experts, **sizes).save_pretrained(source)
        convert(source, self._folder / model_type)
        return self._folder / model_type

    def _profile(self) -> Path:
        assert main(["bench", "io", str(self._file()), *SCAN, "--profile", str(self._kept)]) == 0
        return self._kept

    @property
    def _kept(self) -> Path:
        return self._folder / "disk.json"

    def _file(self) -> Path:
        file = self._folder / "data.bin"
        file.write_bytes(bytes(range(256)) * (16 << 12))
        return file

    def _warns(self) -> Path:
        source = write_checkpoint(self._folder / "source")
        for file in source.glob("tokenizer*"):  # so that there is something to warn of
            file.unlink()
        return source


def printed(
    case: str, places: Places, capsys: pytest.CaptureFixture[str], *, on_stderr: bool
) -> Iterator[dict[str, object]]:
    arguments = places.arguments(case)
    capsys.readouterr()
    code = main(arguments)
    shown = capsys.readouterr()
    assert code in (0, 65), shown.err
    for line in (shown.err if on_stderr else shown.out).splitlines():
        if line.startswith("{"):
            yield json.loads(line)


@pytest.mark.parametrize("command", CASES)
def test_fields_are_those_of_the_page(
    command: str,
    page: Page,
    places: Places,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    if command == "bench io --json" and core.NAME != "native":
        pytest.skip("the twin reads one at a time")
    if command.startswith("sessions"):
        assert main(["run", *places.arguments("{demo} {say}"), "--save"]) == 0
    if command.startswith("ls --checkpoints"):
        put(tmp_path / "hub")
    if command.startswith("pull"):
        request.getfixturevalue("hub")
    documented = SAME.get(command, command)
    count = 0
    for case in CASES[command]:
        for values in printed(case, places, capsys, on_stderr=command in ERRORS):
            kind = values.get("type") or values.get("event")
            page.check(f"{documented}, {kind}" if command in LINES else documented, values)
            count += 1
    assert count
    assert not page.problems, "\n".join(map(str, page.problems))
    page.checked.add(command)
    kinds = LINES.get(command)
    for table in [f"{documented}, {kind}" for kind in kinds] if kinds else [documented]:
        assert page.not_seen(table) == []


def test_everything_on_the_page_is_printed(page: Page) -> None:
    """By one command at least, for what several have in common."""
    if page.checked != set(CASES):
        pytest.skip("sees what the tests above have run, and not all of them were")
    assert [missing for table in page.tables for missing in page.not_seen(table)] == []


def commands_with_json() -> set[str]:
    """Every command that the parser knows with an option for JSON, as the page calls it."""
    found = set()

    def visit(parser: argparse.ArgumentParser, name: str) -> None:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for word, inner in action.choices.items():
                    visit(inner, f"{name} {word}".strip())
            for option in {"--json", "--jsonl"} & {*action.option_strings}:
                found.add(f"{name} {option}")
            if action.option_strings == ["--progress"]:
                found.add(f"{name} --progress jsonl")

    visit(build_parser(), "")
    return found


def test_every_command_has_its_tables(page: Page) -> None:
    # Both print what converting does, as the page says.
    known = {*CASES, "reorder --progress jsonl", "pull --progress jsonl"}
    assert commands_with_json() <= known
    tables = {name.split(",")[0] for name in page.commands}
    assert tables == {SAME.get(name, name) for name in CASES}
    told = {(name.split(", ")[0], name.split(", ")[1]) for name in page.commands if ", " in name}
    assert told == {(name, kind) for name, kinds in LINES.items() for kind in kinds}


def test_the_page_has_the_number() -> None:
    assert f'`"schema": {JSON_SCHEMA}`' in PAGE.read_text("utf-8")


def test_differences_are_found_both_ways() -> None:
    """The comparison itself: a field too many, one too few, one of another type."""
    looked = read_page()
    problem = {"file": "x", "what": "y", "layer": None, "bundle": 3, "offset": 4}
    good = {
        "schema": 1,
        "ok": True,
        "bundles_checked": 1,
        "bytes_checked": 2,
        "seconds": 0.5,
        "problems": [problem],
    }
    looked.check("verify --json", good)
    assert (looked.problems, looked.not_seen("verify --json")) == ([], [])
    assert looked.not_seen("problem") == []
    for change, words in (
        ({"more": 1}, "more: is printed and not on the page"),
        ({"seconds": "1"}, "seconds: is '1', not number"),
        ({"bundles_checked": 1.5}, "bundles_checked: is 1.5, not int"),
        ({"ok": 1}, "ok: is 1, not bool"),
        ({"problems": [{"file": "x"}]}, "lacks what"),
        ({"problems": {}}, "not a list of"),
    ):
        looked = read_page()
        looked.check("verify --json", good | change)
        assert any(words in found for found in looked.problems), looked.problems
    looked = read_page()
    looked.check("verify --json", {k: v for k, v in good.items() if k != "ok"} | {"problems": []})
    assert looked.problems == ["verify --json: lacks ok, which the page has"]
    assert looked.not_seen("verify --json") == ["verify --json: ok"]
    assert "problem: offset" in looked.not_seen("problem")
