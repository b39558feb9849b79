"""`python -m benchmarks.peers`: what it refuses, what it leaves out and names, what it keeps."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.memory_limit import MemoryLimitError
from benchmarks.peers import __main__, contenders, files, runs
from benchmarks.peers.accelerate import memory_for_layers
from benchmarks.peers.contenders import Contender
from benchmarks.peers.files import read_checkpoint
from benchmarks.peers.gguf_model import Shape
from benchmarks.peers.runs import Outcome
from benchmarks.peers.table import report
from benchmarks.peers.worker import Task
from flashllm.errors import UsageError
from flashllm.flash.manifest import read_manifest
from tests.support.checkpoints import write_checkpoint

ROOT = Path(__file__).parents[2]
NOBODY: dict[str, str | None] = {
    "accelerate": None,
    "transformers": "5",
    "llama-cpp-python": None,
}
EVERYBODY = dict.fromkeys(NOBODY, "1.0")


@pytest.fixture
def pair(sparse_model: Path) -> list[str]:
    """A converted model and its checkpoint, as arguments."""
    return [str(sparse_model), "--checkpoint", str(sparse_model.parent / "source")]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """Versions of the peers, to be changed by tests; nobody is installed."""
    versions = dict(NOBODY)
    monkeypatch.setattr(__main__, "installed_versions", lambda python: versions)
    return versions


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds a token by contender, in the place of runs."""
    seconds = {"flashllm": 1.0, "accelerate": 8.0, "llama.cpp": 9.0}

    def run(contender: Contender, number: int, limit_bytes: int | None) -> Outcome:
        ns = int(seconds[contender.name] * 1e9)
        share = 0.91 if number == 2 else 0.01
        return Outcome(
            contender.name, number, limit_bytes, "ok", samples_ns=(ns,) * 4, stolen_share=share,
            prompt_tokens=len(contender.task.ids),
        )  # fmt: skip

    monkeypatch.setattr(runs, "run_once", run)
    return seconds


@pytest.mark.usefixtures("scripted")
def test_what_is_not_installed_is_named_and_the_rest_is_measured(
    pair: list[str],
    installed: dict[str, str | None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    installed["accelerate"] = "1.15.0"
    kept = tmp_path / "report.json"
    assert __main__.main([*pair, "--no-limit", "--rounds", "2", "--json", str(kept)]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("1 of 5 runs lost more than 5%") == 1
    text = shown.out
    assert re.search(
        r"\| accelerate \| [0-9,]+ \| [0-9.]+ \| none \| 8 tokens \| 8 \(8 to 8, 2\) \| 8 \|", text
    )
    assert "Left out: llama.cpp: llama-cpp-python not installed; run `make peers`" in text
    found = json.loads(kept.read_text())
    assert found["complete"] is True
    assert found["contenders"]["accelerate"]["versions"]["accelerate"] == "1.15.0"
    assert len(found["runs"]) == 5
    assert found["header"]["settings"]["threads"] >= 1
    assert list(tmp_path.iterdir()) == [kept]


@pytest.mark.usefixtures("scripted", "installed")
def test_prompts_of_several_lengths_in_turn(pair: list[str], tmp_path: Path) -> None:
    kept = tmp_path / "report.json"
    command = [*pair, "--no-limit", "--rounds", "2", "--prompts", "3,40", "--json", str(kept)]
    assert __main__.main(command) == 0
    found = json.loads(kept.read_text())
    assert [row["prompt_tokens"] for row in found["rows"]] == [3, 40]
    assert [run["prompt_tokens"] for run in found["runs"]] == [3, 3, 40, 40]


@pytest.mark.parametrize("text", ["", "8,", "8,0", "8,x"])
def test_prompts_of_no_length_are_refused(pair: list[str], text: str) -> None:
    with pytest.raises(SystemExit):
        __main__.main([*pair, "--prompts", text])


def test_the_workers_are_modules_that_there_are(
    pair: list[str], installed: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed |= EVERYBODY
    monkeypatch.setattr(__main__, "check_gguf", lambda *_: contenders.Gguf(1000, 2000))
    options = __main__.parse([*pair, "--gguf", "model.gguf"])
    task = Task(options.model, options.ids, 4, 60.0, None, 2)
    found, _ = __main__.peers(options, read_checkpoint(options.checkpoint), task, "f32")
    assert len(found) == 2
    for contender in found:
        command = contender.under(None)
        assert importlib.util.find_spec(command[command.index("-m") + 1]) is not None
    assert contenders.PEERS_PYTHON == ROOT / ".venv-peers" / "bin" / "python"


@pytest.mark.usefixtures("scripted", "installed")
def test_without_a_file_the_report_is_the_last_line(
    pair: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main([*pair, "--no-limit", "--rounds", "1"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out.splitlines()[-1])["complete"] is True
    assert "lost more" not in shown.err


@pytest.mark.usefixtures("scripted", "installed")
def test_without_permission_the_limited_rows_are_left_out_and_named(
    pair: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(limit_bytes: int) -> Iterator[None]:
        raise MemoryLimitError("/sys/fs/cgroup: Permission denied. Run as root")

    monkeypatch.setattr(__main__, "limited", refuse)
    assert __main__.main([*pair, "--rounds", "1", "--limit", "512MiB"]) == 0
    text = capsys.readouterr().out
    assert "Left out: all rows under 512 MiB: /sys/fs/cgroup: Permission denied. Run as" in text
    assert "| flashllm |" in text
    assert __main__.main([*pair, "--only-limit"]) == MemoryLimitError.exit_code
    assert "Run as root" in capsys.readouterr().err


@pytest.fixture
def fail_with(
    scripted: dict[str, float],
    installed: dict[str, str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[BaseException], None]:
    """Two contenders, of whose runs those of the second round end with an error."""
    assert scripted
    installed |= {"accelerate": "1.15.0"}
    run = runs.run_once

    def prepare(error: BaseException) -> None:
        def failing(contender: Contender, number: int, limit_bytes: int | None) -> Outcome:
            if number == 1:
                raise error
            return run(contender, number, limit_bytes)

        monkeypatch.setattr(runs, "run_once", failing)

    return prepare


def test_ctrl_c_keeps_what_was_measured_and_says_so(
    pair: list[str],
    fail_with: Callable[[BaseException], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fail_with(KeyboardInterrupt())
    kept = tmp_path / "report.json"
    assert __main__.main([*pair, "--no-limit", "--json", str(kept)]) == 130
    text = capsys.readouterr().out
    assert "| accelerate |" in text
    assert "Interrupted" in text
    found = json.loads(kept.read_text())
    assert found["complete"] is False
    assert [run["contender"] for run in found["runs"]] == ["flashllm", "accelerate"]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (FileNotFoundError(2, "No such file or directory", "/gone/weights"), 66, "/gone/weights"),
        (OSError(5, "Input/output error", "/bad/weights"), 74, "/bad/weights: Input/output"),
        (MemoryLimitError("the group is gone"), 77, "the group is gone"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_in_the_middle_loses_no_run(
    error: Exception,
    code: int,
    message: str,
    pair: list[str],
    fail_with: Callable[[BaseException], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fail_with(error)
    kept = tmp_path / "report.json"
    assert __main__.main([*pair, "--no-limit", "--json", str(kept)]) == code
    shown = capsys.readouterr()
    assert "| accelerate |" in shown.out
    assert message in shown.err
    found = json.loads(kept.read_text())
    assert found["complete"] is False
    assert len(found["runs"]) == 2
    assert list(tmp_path.iterdir()) == [kept]


@pytest.mark.usefixtures("installed")
def test_a_report_that_cannot_be_kept_any_more_is_printed(
    pair: list[str],
    scripted: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = runs.run_once
    directory = tmp_path / "reports"
    directory.mkdir()

    def removing(contender: Contender, number: int, limit_bytes: int | None) -> Outcome:
        if number == 1:
            shutil.rmtree(directory)
        return run(contender, number, limit_bytes)

    monkeypatch.setattr(runs, "run_once", removing)
    assert __main__.main([*pair, "--no-limit", "--json", str(directory / "report.json")]) == 73
    shown = capsys.readouterr()
    assert "| flashllm |" in shown.out
    assert len(json.loads(shown.out.splitlines()[-1])["runs"]) == 2
    assert "cannot be written" in shown.err


def test_files_that_are_gone_have_no_size(tmp_path: Path) -> None:
    task = Task(tmp_path, [5], 4, 60.0, None, 1)
    gone = Contender("b", (tmp_path / "gone",), 1, lambda _: [], lambda _: {}, task, {})
    assert report({}, [gone], [], [], False)["contenders"]["b"]["file_bytes"] is None


@pytest.mark.usefixtures("scripted", "installed")
def test_a_group_that_nothing_can_join_leaves_the_limited_rows_out(
    pair: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise MemoryLimitError("nothing can be moved there. Run as root")

    @contextlib.contextmanager
    def group(limit_bytes: int) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(limit_bytes=limit_bytes, check_joinable=refuse)

    monkeypatch.setattr(__main__, "limited", group)
    assert __main__.main([*pair, "--rounds", "1", "--limit", "512MiB"]) == 0
    text = capsys.readouterr().out
    assert "Left out: all rows under 512 MiB: nothing can be moved there" in text
    assert "| flashllm |" in text


def test_a_reader_that_has_gone_is_no_traceback(pair: list[str], tmp_path: Path) -> None:
    kept = tmp_path / "report.json"
    code = (
        "import sys; from benchmarks.peers import runs as peer_runs, __main__ as peers;"
        "from benchmarks.peers.runs import Outcome;"
        f"peers.installed_versions = lambda python: {NOBODY!r};"
        "peer_runs.run_once = lambda c, n, b: Outcome(c.name, n, b, 'ok', samples_ns=(9,) * 4);"
        "sys.exit(peers.main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, *pair, "--no-limit", "--rounds", "1", "--json", str(kept)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()  # long before anything is written
    process.stdout = None
    _, said = process.communicate()
    assert process.returncode == 141
    assert "Traceback" not in said
    assert json.loads(kept.read_text())["complete"] is True


@pytest.mark.usefixtures("installed")
def test_a_model_of_another_checkpoint_is_refused(
    sparse_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_checkpoint(tmp_path / "other")
    assert __main__.main([str(sparse_model), "--checkpoint", str(other)]) == UsageError.exit_code
    said = capsys.readouterr().err
    assert "was not made from" in said
    assert "n_layers" in said


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--ids", "5,99999999"], 2, "the vocabulary ends at"),
        (["--json", "/no/such/place/report.json"], 73, "create it first"),
        (["--checkpoint", "/no/such/checkpoint"], 66, "no such checkpoint"),
        (["--limit", "0"], 2, "at least 1"),
    ],
)
def test_bad_input_is_told_before_anything_runs(
    arguments: list[str],
    code: int,
    message: str,
    pair: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert __main__.main([*pair, *arguments]) == code
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"parameters": 10**12, "encoding": "f16"}, "1,000,000,000,000 parameters, but"),
        ({"encoding": "q4_0"}, "its weights are q4_0"),
    ],
)
def test_a_gguf_of_another_size_or_encoding_is_refused(
    described: dict[str, Any],
    message: str,
    pair: list[str],
    installed: dict[str, str | None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    installed |= EVERYBODY
    file = tmp_path / "other.gguf"
    assert __main__.main([*pair, "--gguf", str(file)]) == 2
    assert "no such file; make one with" in capsys.readouterr().err
    file.write_bytes(b"GGUF")
    right = {"parameters": read_checkpoint(Path(pair[2])).parameters, "encoding": "f32"}
    monkeypatch.setattr(contenders, "_ask", lambda *_: json.dumps(right | described))
    assert __main__.main([*pair, "--gguf", str(file)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("scripted")
def test_without_a_gguf_the_command_that_makes_one_is_named(
    pair: list[str], installed: dict[str, str | None], capsys: pytest.CaptureFixture[str]
) -> None:
    installed |= EVERYBODY
    assert __main__.main([*pair, "--no-limit", "--rounds", "1"]) == 0
    assert "-m benchmarks.peers.gguf_model" in capsys.readouterr().out


@pytest.mark.usefixtures("scripted")
def test_a_model_in_int8_is_compared_with_q8_0_under_half_of_its_own_size(
    pair: list[str],
    installed: dict[str, str | None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    installed |= EVERYBODY
    manifest = read_manifest(Path(pair[0]))
    quantised = replace(manifest, spec=_as_if(manifest.spec, "int8"))
    monkeypatch.setattr(__main__, "read_model", lambda *_: quantised)
    monkeypatch.setattr(__main__, "read_manifest", lambda _: quantised)
    weights = SimpleNamespace(total=1 << 20)
    monkeypatch.setattr(__main__, "Weights", SimpleNamespace(of=lambda spec: weights))
    asked: list[int] = []

    def refuse(limit_bytes: int) -> None:
        asked.append(limit_bytes)
        raise MemoryLimitError("not here")

    monkeypatch.setattr(__main__, "limited", refuse)
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    parameters = read_checkpoint(Path(pair[2])).parameters
    described = {"parameters": parameters, "encoding": "q8_0", "bytes": 17 * parameters // 16}
    monkeypatch.setattr(contenders, "_ask", lambda *_: json.dumps(described))
    assert __main__.main([*pair, "--gguf", str(file), "--rounds", "1"]) == 0
    text = capsys.readouterr().out
    assert "Left out: accelerate: it has no weights like those in int8" in text
    assert re.search(r"\| llama.cpp \| [0-9,]+ \| 8.50 \| none \| 8 tokens \| 9 ", text)
    assert asked == [1 << 19]
    described["encoding"] = "f16"
    assert __main__.main([*pair, "--gguf", str(file)]) == 2
    assert "its weights are f16, ours are int8" in capsys.readouterr().err


def test_the_precision_may_be_the_conversions_and_nothing_else_may_differ(
    pair: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = read_checkpoint(Path(pair[2]))
    manifest = read_manifest(Path(pair[0]))
    spec = manifest.spec
    for dtype, taken in (("int8", True), ("bf16", False)):
        other = replace(manifest, spec=_as_if(spec, dtype))
        monkeypatch.setattr(files, "read_manifest", lambda _, other=other: other)
        if taken:
            assert files.read_model(Path(pair[0]), checkpoint).spec.dtype == dtype
        else:
            with pytest.raises(UsageError, match="dtype bf16 and f32"):
                files.read_model(Path(pair[0]), checkpoint)


def _as_if(spec: Any, dtype: str) -> Any:
    """What is compared of a spec, in another precision."""
    return SimpleNamespace(**{name: getattr(spec, name) for name in files.SAME} | {
        "dtype": dtype
    })  # fmt: skip


def test_versions_are_asked_of_the_interpreter_of_the_peers() -> None:
    found = contenders.installed_versions(Path(sys.executable))
    assert set(found) == set(NOBODY)
    assert found["transformers"]
    with pytest.raises(UsageError, match="make peers"):
        contenders.installed_versions(ROOT / "no" / "python")


def test_a_head_that_is_the_embedding_is_counted_once(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_checkpoint(tmp_path / "source", shards=2))
    width, ffn, words = 12, 20, 40
    layer = 4 * (width + 1) * width + (width + 1) * ffn + (ffn + 1) * width + 4 * width
    assert checkpoint.parameters == 2 * layer + words * width + 18 * width + 2 * width
    assert len(checkpoint.files) == 2


def test_layers_get_what_the_limit_leaves() -> None:
    gib = 1 << 30
    assert memory_for_layers(gib, gib, 1, 1) == 0
    large = memory_for_layers(8 * gib, gib, gib // 4, gib)
    assert 6 * gib < large < 7 * gib - gib // 4
    # The embedding does not fit beside a layer, so it is read from disk too and needs its room.
    small = memory_for_layers(3 * gib, gib, gib // 4, 7 * gib // 4)
    assert 0 < small < gib // 2


def test_what_make_peers_installs_is_pinned_and_no_dependency() -> None:
    lines = (ROOT / "benchmarks" / "peers" / "peers.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9.]+", pin) for pin in pins)
    assert {"accelerate", "llama-cpp-python", "gguf"} <= {pin.split("==")[0] for pin in pins}
    assert "llama" not in (ROOT / "pyproject.toml").read_text()
    make = (ROOT / "Makefile").read_text()
    assert "-r benchmarks/peers/peers.txt" in make
    assert "$(PEERS)" in make.split("clean:")[1]


def test_the_gguf_has_nearly_as_many_parameters(tmp_path: Path) -> None:
    spec = read_checkpoint(write_checkpoint(tmp_path / "source")).spec
    large = replace(
        spec, n_layers=32, d_model=4096, n_heads=32, n_kv_heads=32, head_dim=128, d_ffn=16384,
        vocab_size=50272, embed_dim=4096, max_positions=2048,
    )  # fmt: skip
    parameters = 6_658_473_984
    shape = Shape.like(large, parameters)
    assert shape.parameters == pytest.approx(parameters, rel=0.001)
    assert shape.d_ffn % 32 == 0
    assert not any(name == "output.weight" for name, _, _ in shape.tensors())
    untied = Shape.like(replace(large, tied_head=False), parameters)
    assert untied.parameters == pytest.approx(parameters, rel=0.001)
