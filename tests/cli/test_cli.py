"""The command line: options, exit codes, what goes where, and what is imported for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from flashllm.cli.main import main, parse
from flashllm.cli.run import prompt
from flashllm.cli.shared import open_model
from flashllm.errors import MemoryCeilingTooSmall, ReadFailed, UsageError
from flashllm.settings.values import parse_ids, parse_size
from tests.support.fake_engine import FakeModel, Step

KEPT = ("FLASHLLM_HOME", "FLASHLLM_NO_QUICK_PROFILE")
pytestmark = pytest.mark.usefixtures("m")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("FLASHLLM_") and name not in KEPT:
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def no_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt, "_has_piped_stdin", lambda wait: False)


def use(monkeypatch: pytest.MonkeyPatch, model: FakeModel | Exception) -> list[Any]:
    """Lets commands open this model; returns the arguments with which they do."""
    opened: list[Any] = []

    def open_engine(directory: Path, arguments: Any) -> Any:
        opened.append(arguments)
        if isinstance(model, Exception):
            raise model
        return model

    monkeypatch.setattr(open_model, "open_engine", open_engine)
    return opened


def isolated(code: str) -> set[str]:
    """Names of the modules that a piece of code imports in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1000000", 1_000_000),
        ("4GiB", 4 << 30),
        ("4 gib", 4 << 30),
        ("800MB", 800_000_000),
        ("512M", 512 << 20),
        ("1.5G", 3 << 29),
        ("2k", 2048),
        ("1tb", 10**12),
        ("7B", 7),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    "text", ["", "-1", "GiB", "4 G iB", "1e9", "1.2.3G", "4XB", "iB", "5i", "∞"]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


def test_token_ids() -> None:
    assert parse_ids("1,2, 3 4") == [1, 2, 3, 4]
    assert parse_ids(" ") == []
    with pytest.raises(UsageError):
        parse_ids("1,-2")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "--memory", "lots"], "--memory: 'lots' is not a size"),
        (["run", "--temp", "nan"], "--temp: 'nan' is not a number"),
        (["run", "-n", "0"], "'0' is too small"),
        (["run", "--json", "--jsonl"], "not allowed with"),
        (["run", "--nonsense"], "there is no option --nonsense; see `flashllm run --help`"),
        (["run", "-p", "x", "--ids", "1"], "--ids and -p"),
        (["run", "--ids", ""], "--ids is empty"),
        (["run", "-p", "  "], "the prompt is empty"),
        (["run"], "there is no prompt"),
        (["run", "-p", "x", "--top-p", "2"], "--top-p: '2' is out of range"),
        (["convert"], "required: SRC"),
        (["frobnicate"], "no command 'frobnicate'; see `flashllm --help`"),
        (["cmplete"], "no command 'cmplete'; did you mean `flashllm completion`?"),
        (["m"], "did you mean `flashllm chat m`"),
        (["a" * 300], "see `flashllm --help`"),
        (["chat"], "needs a terminal"),
        ([], "needs a terminal"),
    ],
)
def test_usage_errors_are_one_message(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("flashllm: ")
    assert expected in captured.err
    assert captured.err.count("\n") == 1


def test_remarks_never_become_output() -> None:
    code = (
        "import sys; sys.stderr = None; from flashllm.cli.main import main;"
        " sys.exit(main(['nothing']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")


def test_what_the_system_refuses_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a" * 300
    assert main(["run", "m", "-f", name]) == 2
    assert f"{name}: cannot be read: File name too long" in capsys.readouterr().err
    assert main(["info", name]) == 66
    assert f"{name}: there is no model of that name" in capsys.readouterr().err


def test_a_flag_beats_the_environment_and_that_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse(["run"]).max_tokens == 512
    monkeypatch.setenv("FLASHLLM_MAX_TOKENS", "7")
    monkeypatch.setenv("FLASHLLM_MEMORY", "1GiB")
    monkeypatch.setenv("FLASHLLM_NO_DIRECT", "1")
    monkeypatch.setenv("FLASHLLM_MODEL", "/models/a")
    parsed = parse(["chat", "-n", "9"])
    assert (parsed.max_tokens, parsed.memory, parsed.no_direct) == (9, 1 << 30, True)
    assert parsed.model == "/models/a"
    assert parse(["chat", "/models/b"]).model == "/models/b"


def test_a_wrong_environment_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLASHLLM_MEMORY", "plenty")
    assert main(["run", "-p", "x"]) == 2
    assert "FLASHLLM_MEMORY: 'plenty' is not a size" in capsys.readouterr().err


def test_without_a_command_it_is_the_chat() -> None:
    assert parse([]).handler == parse(["chat"]).handler
    assert parse(["--memory", "1G"]).memory == 1 << 30


@pytest.mark.parametrize("arguments", ["['--help']", "['run', '--help']", "['--version']"])
def test_help_imports_nothing_heavy(arguments: str) -> None:
    code = (
        "import contextlib\nfrom flashllm.cli.main import main\n"
        f"with contextlib.suppress(SystemExit): main({arguments})"
    )
    assert not isolated(code) & {"torch", "textual", "numpy", "rich", "tokenizers", "sentencepiece"}


def test_help_shows_examples_first(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["run", "--help"])
    assert leaving.value.code == 0
    text = capsys.readouterr().out
    assert text.index("examples:") < text.index("--max-tokens")
    assert "[FLASHLLM_MEMORY]" in text


def test_the_doctor_imports_no_torch() -> None:
    assert "torch" not in isolated("from flashllm.cli.main import main; main(['doctor', '--json'])")


def test_run_prints_the_answer_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = FakeModel(["An ocean", " is water."])
    use(monkeypatch, model)
    assert main(["run", "m", "-p", "ocean?", "-s", "Be brief.", "--stop", "a", "--stop", "b"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "An ocean is water.\n"
    assert captured.err == ""
    assert model.closed
    assert model.requests[0]["stop"] == ("a", "b")
    assert model.tokenizer is not None
    assert model.tokenizer.conversations == [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "ocean?"}]
    ]


def test_run_json_is_one_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, FakeModel(["é", "\x1b[2J"]))
    assert main(["run", "m", "-p", "x", "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out)["text"] == "é\x1b[2J"


def test_run_jsonl_is_an_object_per_token_and_a_sum(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, FakeModel(["a", "b"]))
    assert main(["run", "m", "-p", "x", "--jsonl"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["type"] for line in lines] == ["token", "token", "summary"]
    assert [line["text"] for line in lines] == ["a", "b", "ab"]


def test_run_without_streaming_prints_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, FakeModel(["a", "b"]))
    assert main(["run", "m", "-p", "x", "--no-stream"]) == 0
    assert capsys.readouterr().out == "ab\n"


def test_raw_and_a_model_without_template_continue_the_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = FakeModel(["x"])
    use(monkeypatch, model)
    assert main(["run", "m", "-p", "one two three", "--raw"]) == 0
    assert model.tokenizer is not None
    assert model.tokenizer.conversations == []
    assert model.requests[0]["ids"] == [1, 2, 3]
    model.tokenizer.has_chat_template = False
    assert main(["run", "m", "-p", "one two"]) == 0
    assert model.requests[1]["ids"] == [1, 2]
    assert main(["run", "m", "-p", "x", "--raw", "-s", "y"]) == 2
    assert "--raw turns off" in capsys.readouterr().err


def test_a_model_without_a_tokenizer_runs_by_ids(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = FakeModel(["", ""])
    model.has_tokenizer = False
    use(monkeypatch, model)
    assert main(["run", "m", "--ids", "5,6"]) == 0
    assert capsys.readouterr().out == "0 1\n"
    assert model.requests[0]["ids"] == [5, 6]
    assert main(["run", "m", "-p", "x"]) == 2
    assert "--ids 1,2,3" in capsys.readouterr().err


def test_an_error_in_the_middle_keeps_the_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, FakeModel(["half an", ReadFailed("ffn.bundles\x1b]0;t\x07: offset 1")]))
    assert main(["run", "m", "-p", "x"]) == 74
    captured = capsys.readouterr()
    assert captured.out == "half an\n"
    assert captured.err == "flashllm: ffn.bundles: offset 1\n"


def test_a_ceiling_too_small_has_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = use(monkeypatch, MemoryCeilingTooSmall("the smallest is 212 MiB", 212 << 20))
    assert main(["run", "m", "-p", "x", "--memory", "10MB"]) == 71
    assert opened[0].memory == 10_000_000
    assert "smallest is 212 MiB" in capsys.readouterr().err


def test_options_reach_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FakeModel(["x"])
    opened = use(monkeypatch, model)
    options = ["--window", "3", "--select", "all", "--io-threads", "4", "--no-direct", "-c", "99"]
    options += ["-n", "5", "--seed", "8", "--temp", "0.5", "--top-k", "2"]
    assert main(["run", "m", "-p", "x", *options]) == 0
    given = opened[0]
    assert (given.window, given.select, given.io_threads, given.ctx_size) == (3, "all", 4, 99)
    assert given.no_direct is True
    assert model.requests[0]["max_tokens"] == 5
    sampling = model.requests[0]["sampling"]
    assert (sampling.temperature, sampling.top_k, sampling.seed) == (0.5, 2, 8)


def test_the_first_interrupt_stops_the_answer_and_keeps_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arrived = threading.Event()

    class Interrupting(FakeModel):
        def generate(self, *arguments: Any, **options: Any) -> Any:
            threading.Thread(target=self._interrupt).start()
            return super().generate(*arguments, **options)

        def _interrupt(self) -> None:
            arrived.wait(30)
            signal.raise_signal(signal.SIGINT)

    steps: list[Step] = ["begun", threading.Event(), "never"]
    model = Interrupting(steps)
    use(monkeypatch, model)
    monkeypatch.setattr("flashllm.cli.shared.output.Output.write", _writing_sets(arrived, capsys))
    assert main(["run", "m", "-p", "x"]) == 130
    captured = capsys.readouterr()
    assert captured.out == "begun\n"
    assert "interrupted" in captured.err
    assert model.closed


def _writing_sets(arrived: threading.Event, capsys: object) -> Any:
    from flashllm.cli.shared.output import Output

    write = Output.write

    def writing(self: Any, text: str) -> None:
        write(self, text)
        arrived.set()

    return writing


# What started the tests may ignore signals, as nohup does, and that would be inherited.
SCRIPT = """
import signal, sys, threading
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
from flashllm.cli.shared import open_model as opening
from flashllm.cli.main import main
from tests.support.fake_engine import FakeModel
steps = {steps}
opening.open_engine = lambda directory, arguments: FakeModel(steps)
sys.exit(main(sys.argv[1:]))
"""


def start(steps: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(steps=steps), *arguments],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def test_a_reader_that_leaves_ends_it_quietly(m: Path) -> None:
    more_than_a_pipe_holds = ("run", str(m), "-p", "x", "-n", "100000")
    process = start("['word '] * 100_000", *more_than_a_pipe_holds, stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(5)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 141


def test_standard_input_goes_before_the_text(m: Path) -> None:
    script = "['ok']"
    process = start(script, "run", str(m), "-p", "after", "--json", stdin=subprocess.PIPE)
    out, err = process.communicate(b"one two three\n", timeout=60)
    assert err == b""
    assert json.loads(out)["prompt_tokens"] == 5  # four words and the message's own
    process = start(script, "run", str(m), "-p", "-", "--json", stdin=subprocess.PIPE)
    out, err = process.communicate(b"one two\n", timeout=60)
    assert json.loads(out)["prompt_tokens"] == 3


def test_an_open_and_empty_pipe_does_not_hold_a_prompt_up(m: Path) -> None:
    reading, writing = os.pipe()
    try:
        process = start("['ok']", "run", str(m), "-p", "x", stdin=reading)
        out, err = process.communicate(timeout=60)
    finally:
        os.close(reading)
        os.close(writing)
    assert out == b"ok\n"
    assert b"nothing on standard input" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_process_without_a_traceback(m: Path, number: signal.Signals) -> None:
    process = start(
        "['begun', threading.Event()]", "run", str(m), "-p", "x", stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    assert process.stdout.read(5) == b"begun"
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert b"interrupted; the answer is incomplete" in err
    assert b"Traceback" not in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_full_disk_under_standard_output(m: Path, form: list[str]) -> None:
    arguments = ["run", str(m), "-p", "x", *form]
    root = Path(__file__).parents[2]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(steps="['x']"), *arguments],
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 73
    assert b"flashllm: standard output: cannot be written" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_standard_output_that_is_closed(m: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", SCRIPT.format(steps="['x']"), "run", str(m), "-p", "x"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command],
        cwd=root,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == 73
    assert b"flashllm: standard output: is closed" in done.stderr
    assert b"Traceback" not in done.stderr


class Unmeasured(FakeModel):
    """A model on a disk that nobody has measured."""

    def __init__(self, *answers: list[Step]) -> None:
        super().__init__(*answers)
        self.wants_quick_profile = True


@pytest.mark.parametrize(
    ("more", "said"),
    [([], False), (["--stats"], True), (["--json"], False), (["--no-quick-profile"], None)],
    ids=str,
)
def test_an_unknown_disk_is_measured_after_the_answer(
    more: list[str],
    said: bool | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("FLASHLLM_NO_QUICK_PROFILE")
    model = Unmeasured(["yes"])
    started: list[tuple[Path, bool]] = []

    def start_detached(directory: Path) -> bool:
        started.append((directory, model.closed))
        return True

    monkeypatch.setattr(open_model, "model_directory", lambda name: Path("/some/model"))
    monkeypatch.setattr(open_model, "open_engine", lambda *_: model)
    monkeypatch.setattr("flashllm.library.quick_profile_job.start_detached", start_detached)
    assert main(["run", "-p", "go", *more]) == 0
    shown = capsys.readouterr()
    assert "quick" not in shown.out
    assert ("this disk was not measured yet" in shown.err) is bool(said)
    # Once the model is closed: nothing of it waits, and its memory is free.
    assert started == ([] if said is None else [(Path("/some/model"), True)])
