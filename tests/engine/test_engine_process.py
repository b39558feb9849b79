"""The engine in a process of its own: the same answers, and what happens when one of both ends."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from flashllm import errors
from flashllm.conversations.tree import Conversation
from flashllm.engine.answer import Request, start
from flashllm.engine.process.client import EngineClient
from flashllm.engine.process.launcher import GROWTH_BYTES, EngineLauncher, open_in
from flashllm.engine.process.messages import Failure
from flashllm.engine.process.supervisor import WorkerSupervisor, _lost_text
from flashllm.engine.protocol import Engine, EngineGeneration, EngineWait, OpeningProgress
from flashllm.engine.sampling import Sampling
from flashllm.errors import (
    BatchRowError,
    ChecksumMismatch,
    EngineBusy,
    EngineLost,
    FlashllmError,
    MemoryCeilingTooSmall,
    ReadFailed,
    UsageError,
)
from flashllm.options import DEFAULT_OPTIONS, ModelOptions
from flashllm.system.memory import rss_bytes
from tests.support.engine_openers import OPENER
from tests.support.fake_engine import INFO, PLAN, fake_cost

WAIT_SECONDS = 30.0
ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def opened(path: str, **options: Any) -> Iterator[EngineClient]:
    with open_in(WorkerSupervisor(OPENER), path, DEFAULT_OPTIONS, **options) as engine:
        yield engine


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that are begun, the last one at the end."""
    begun: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            begun.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    return begun


def text_of(generation: EngineGeneration) -> str:
    return "".join(token.text for token in generation)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def test_an_answer_is_the_same_as_in_this_process() -> None:
    told: list[OpeningProgress] = []
    with opened("plain", on_opening=told.append) as engine:
        # Of progress the last one is what counts; it is never lost.
        assert told[-1] == OpeningProgress("converting", 2, 2)
        assert (engine.info, engine.plan) == (INFO, PLAN)
        assert engine.cautions() == []
        assert engine.io_report()["backend"] == "threads"
        assert engine.rates().flash_bytes_per_second is None
        generation = engine.generate(
            [5, 6, 7], max_tokens=9, sampling=Sampling(temperature=0.5), stop=("x",)
        )
        tokens = list(generation)
        assert [token.text for token in tokens] == ["An", " ocean"]
        assert generation.text == "An ocean"
        assert generation.ids == [token.id for token in tokens]
        assert generation.finish_reason == "stop"
        assert (generation.prompt_tokens, generation.reused_tokens) == (3, 0)
        assert generation.prefill.tokens == 3
        assert generation.report()["decode"]["tokens"] == 1
        # The parts of a token's time are the child's; memory is that of both processes.
        cost = fake_cost()
        assert tokens[1].cost.parts_ns == cost.parts_ns
        assert tokens[1].cost.rss_bytes > cost.rss_bytes + rss_bytes() // 2
        again = engine.generate([5, 6, 7, *generation.ids, 8])
        assert text_of(again) == "Two"
        assert again.reused_tokens == 5


def test_messages_become_ids_in_the_child_and_an_answer_goes_on() -> None:
    with opened("plain") as engine:
        assert engine.tokenizer.decode(engine.tokenizer.encode("one two")) == "one two"
        conversation = Conversation("Be brief.")
        conversation.ask("a b")
        request = Request(conversation.messages(), conversation.system)
        first = start(engine, request)
        assert text_of(first.generation) == "An ocean"
        turn = conversation.begin_answer()
        turn.text, turn.ids = first.generation.text, tuple(first.generation.ids)
        request = Request(
            conversation.messages(), conversation.system, conversation.known(), continues=True
        )
        second = start(engine, request)
        assert text_of(second.generation) == "Two"
        assert second.generation.prompt_tokens == first.generation.prompt_tokens + 2
        assert second.generation.reused_tokens == second.generation.prompt_tokens - 1


def test_batches_lose_nothing() -> None:
    with opened("many") as engine:
        generation = engine.generate([1], max_tokens=5000)
        assert text_of(generation) == "".join(f"<{number}>" for number in range(5000))
        assert generation.finish_reason == "stop"
        assert len(generation.ids) == 5000


def test_progress_in_reading_comes_in_order_and_ends_at_the_end() -> None:
    told: list[tuple[float, int]] = []
    with opened("prefill") as engine:
        generation = engine.generate([1], on_prefill=lambda done, total: told.append((done, total)))
        assert text_of(generation) == "read"
    assert told == sorted(told)
    assert told[-1] == (64, 64)


@pytest.mark.parametrize("name", ["endless", "waiting"])
def test_a_stop_acts_while_a_token_or_the_prompt_is_computed(name: str) -> None:
    with opened(name) as engine:
        reading = threading.Event()
        generation = engine.generate([1], max_tokens=5000, on_prefill=lambda *_: reading.set())
        if name == "endless":
            assert next(generation).text == "begun"
            engine.cancel()
        else:
            threading.Thread(target=lambda: (reading.wait(WAIT_SECONDS), engine.cancel())).start()
        text_of(generation)
        assert generation.finish_reason == "cancelled"
        assert len(generation.ids) < 500
        assert text_of(engine.generate([1])) == "fine"


def test_a_stop_before_the_answer_has_begun_is_not_lost_and_not_kept() -> None:
    with opened("waiting") as engine:
        generation = engine.generate([1])
        engine.cancel()
        assert text_of(generation) == ""
        assert generation.finish_reason == "cancelled"
        engine.cancel()  # of what is over
        assert text_of(engine.generate([1])) == "fine"


def test_a_second_answer_is_refused_until_the_first_is_closed() -> None:
    with opened("endless") as engine:
        first = engine.generate([1], max_tokens=5000)
        assert next(first).text == "begun"
        with pytest.raises(EngineBusy, match="another answer"):
            engine.generate([1])
        assert next(first).text == " on", "it goes on"
        first.close()
        assert text_of(engine.generate([1])) == "fine"
        assert list(first) == []
        assert first.finish_reason == "cancelled"
        assert first.report()["finish_reason"] == "cancelled"


def test_an_answer_that_nobody_refers_to_is_over() -> None:
    with opened("endless") as engine:
        for token in engine.generate([1], max_tokens=5000):
            assert token.text == "begun"
            break
        assert text_of(engine.generate([1])) == "fine"


def test_a_map_of_neurons_comes_without_waiting_while_an_answer_is_written() -> None:
    with opened("endless") as engine:
        generation = engine.generate([1], max_tokens=5000)
        assert next(generation).text == "begun"
        until(lambda: engine.neuron_map() is not None)
        found = engine.neuron_map()
        assert found is not None
        assert [len(row) for row in found.states()] == INFO.spec.n_layers * [found.blocks]
        asked = [engine.neuron_map() for _ in range(1000)]
        assert len({id(one) for one in asked}) <= 3
        generation.close()


@pytest.mark.parametrize(
    ("name", "expected", "match"),
    [
        ("fails", ReadFailed, "layer 3: EIO"),
        ("bug", FlashllmError, "unexpected: ZeroDivisionError: by zero"),
        ("full", MemoryError, "^$"),
    ],
)
def test_an_error_crosses_and_the_engine_stays(
    name: str, expected: type[BaseException], match: str
) -> None:
    with opened(name) as engine:
        generation = engine.generate([1])
        next(generation)
        with pytest.raises(expected, match=match) as caught:
            next(generation)
        assert type(caught.value) is expected
        with pytest.raises(StopIteration):
            next(generation)
        assert text_of(engine.generate([1])) == "fine"
        with pytest.raises(UsageError, match="prompt is empty"):
            engine.generate([])


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("killed", -signal.SIGKILL, "was killed, which happens where memory runs out"),
        ("crash", -signal.SIGSEGV, "crashed (SIGSEGV)"),
        ("leaves", 3, "ended (exit code 3)"),
    ],
)
def test_an_engine_that_vanishes_is_an_error_that_says_what_to_do(
    name: str,
    code: int,
    words: str,
    caplog: pytest.LogCaptureFixture,
    children: list[subprocess.Popen[bytes]],
) -> None:
    with opened(name) as engine:
        generation = engine.generate([1])
        assert next(generation).text == "x"
        with pytest.raises(EngineLost) as caught:
            next(generation)
        assert words in str(caught.value)
        assert "/retry" in str(caught.value)
        assert children[-1].returncode == code
        # Whatever is asked afterwards says the same, and waits for nothing.
        with pytest.raises(EngineLost):
            engine.tokenizer.encode("x")
        with pytest.raises(EngineLost):
            list(engine.generate([1]))
        with pytest.raises(EngineLost):
            generation.report()
        engine.cancel()
        engine.neuron_map()
    assert words in caplog.text
    if name == "crash":
        until(lambda: "last words" in caplog.text)  # without what would act on a terminal
    assert "\x1b" not in caplog.text


@pytest.mark.parametrize("number", [signal.SIGTERM, 40])  # the second one has no name
def test_a_signal_without_a_name_is_told_too(number: int) -> None:
    assert f"crashed ({getattr(number, 'name', number)})" in _lost_text(-number)


def test_an_engine_killed_from_outside_while_somebody_waits(
    children: list[subprocess.Popen[bytes]],
) -> None:
    with opened("waiting") as engine:
        generation = engine.generate([1])
        threading.Timer(0.1, children[-1].kill).start()
        with pytest.raises(EngineLost, match="killed"):
            next(generation)


@pytest.mark.parametrize(
    ("path", "expected"),
    [("corrupt", ChecksumMismatch), ("dies opening", EngineLost), ("missing", FlashllmError)],
)
def test_a_model_that_does_not_open_leaves_no_process(
    path: str, expected: type[FlashllmError], children: list[subprocess.Popen[bytes]]
) -> None:
    with pytest.raises(expected):
        open_in(WorkerSupervisor(OPENER), path, DEFAULT_OPTIONS)
    assert children[-1].returncode is not None


def test_the_ceiling_is_said_to_be_that_of_both() -> None:
    before = rss_bytes()  # what earlier tests left may be given back meanwhile
    with pytest.raises(MemoryCeilingTooSmall) as caught:
        open_in(WorkerSupervisor(OPENER), "too small", ModelOptions(memory=99))
    application_bytes, _, memory = str(caught.value).split()
    assert memory == "99"
    assert GROWTH_BYTES < int(application_bytes) <= max(before, rss_bytes()) + 2 * GROWTH_BYTES
    assert caught.value.smallest_bytes == 212 << 20


def test_without_memory_for_a_process_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", refused)
    with pytest.raises(EngineLost, match=r"cannot be started \(Cannot allocate memory\)"):
        EngineLauncher(DEFAULT_OPTIONS, OPENER).open("plain")


def test_an_engine_that_cannot_be_loaded_says_so() -> None:
    with pytest.raises(FlashllmError, match="ModuleNotFoundError"):
        open_in(WorkerSupervisor("flashllm.nothing:at_all"), None, DEFAULT_OPTIONS)


def test_a_wait_for_the_disk_is_known_while_it_lasts(
    children: list[subprocess.Popen[bytes]],
) -> None:
    with opened("slow disk") as engine:
        assert engine.current_wait().disk_seconds == 0.0
        generation = engine.generate([1])
        assert next(generation).text == "x"
        until(lambda: engine.current_wait().disk_seconds >= 4.2)
        assert engine.current_wait().disk_seconds < 4.2 + WAIT_SECONDS
        children[-1].send_signal(signal.SIGSTOP)
        until(lambda: engine.current_wait().silent_seconds > 1.0)
        assert engine.current_wait().disk_seconds > 4.2, "it goes on, as far as is known"
        children[-1].send_signal(signal.SIGCONT)
        until(lambda: engine.current_wait().silent_seconds < 1.0)
        children[-1].kill()
        until(lambda: engine.current_wait() == EngineWait())


def test_closing_ends_a_child_that_is_stopped_or_hangs(
    children: list[subprocess.Popen[bytes]],
) -> None:
    with opened("plain") as engine:
        children[-1].send_signal(signal.SIGSTOP)
        engine.cancel()
        began = time.monotonic()
    assert time.monotonic() - began < WAIT_SECONDS
    assert children[-1].returncode == -signal.SIGKILL
    engine.close()  # once more

    process = WorkerSupervisor(OPENER)
    failed: list[BaseException] = []

    def open_it() -> None:
        try:
            open_in(process, "hangs", DEFAULT_OPTIONS)
        except EngineLost as error:
            failed.append(error)

    thread = threading.Thread(target=open_it)
    thread.start()
    process.close()
    thread.join(WAIT_SECONDS)
    assert [str(error) for error in failed] == ["the engine was closed"]
    assert children[-1].returncode == 0


def test_an_opening_can_be_given_up_at_once(children: list[subprocess.Popen[bytes]]) -> None:
    launcher = EngineLauncher(DEFAULT_OPTIONS, OPENER)
    failed: list[BaseException] = []

    def open_it() -> None:
        try:
            launcher.open("hangs")
        except EngineLost as error:
            failed.append(error)

    thread = threading.Thread(target=open_it)
    thread.start()
    until(lambda: children != [])
    launcher.close()
    thread.join(WAIT_SECONDS)
    assert len(failed) == 1
    assert children[-1].returncode == 0


def test_each_model_has_a_process_of_its_own(children: list[subprocess.Popen[bytes]]) -> None:
    launcher = EngineLauncher(ModelOptions(memory=7), OPENER)
    with launcher.open("plain"), launcher.open("plain"):
        one, other = children
        assert one.poll() is other.poll() is None
    launcher.close()


PARENT = f"""
import sys
from flashllm.engine.process.launcher import open_in
from flashllm.options import DEFAULT_OPTIONS
from flashllm.engine.process.supervisor import WorkerSupervisor
process = WorkerSupervisor({OPENER!r})
print(process.pid, flush=True)
if {{path!r}}:
    generation = open_in(process, {{path!r}}, DEFAULT_OPTIONS).generate([1], max_tokens=5000)
    next(generation)
    print("torch" in sys.modules or "textual" in sys.modules, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("path", ["", "endless"])
def test_the_child_ends_with_its_parent(path: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(path=path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    child = int(parent.stdout.readline())
    if path:
        assert parent.stdout.readline() == b"False\n"  # the application needs no torch
    assert not is_gone(child)
    parent.kill()
    parent.wait(WAIT_SECONDS)
    parent.stdin.close()
    parent.stdout.close()
    until(lambda: is_gone(child))


def test_the_childs_modules_are_the_parents_whatever_lies_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("numpy", "flashllm", "socket"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hijacked')")
    monkeypatch.chdir(tmp_path)
    with opened("plain") as engine:
        assert text_of(engine.generate([1])) == "An ocean"


def every_error() -> list[FlashllmError]:
    found: list[FlashllmError] = []
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, FlashllmError):
            more = {MemoryCeilingTooSmall: (7,), BatchRowError: ("what it says",)}.get(kind, ())
            found.append(kind(f"what {name} says", *more))
    return found


@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
def test_every_error_crosses_as_what_it_is(error: FlashllmError) -> None:
    crossed = Failure.of(error).error()
    assert type(crossed) is type(error)
    assert str(crossed) == str(error)
    assert vars(crossed) == vars(error)
    assert isinstance(crossed, FlashllmError)
    assert crossed.exit_code == error.exit_code


def test_nothing_is_left_open(recwarn: pytest.WarningsRecorder) -> None:
    logging.getLogger("flashllm").debug("before")
    with opened("plain") as engine:
        text_of(engine.generate([1]))
    del engine
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


def as_engine(engine: EngineClient) -> Engine:
    """What the type checker says of the names."""
    return engine
