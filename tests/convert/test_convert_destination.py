"""The destination is complete or absent: full disks, signals, rivals, dead processes."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flashllm.convert import convert, verify
from flashllm.convert.output import destination, predictor_files

from flashllm.errors import (
    CannotCreate,
    DestinationExists,
    FlashllmError,
    Interrupted,
    LayoutError,
    NotEnoughSpace,
    UsageError,
)
from flashllm.flash.manifest import read_manifest
from tests.support.checkpoints import all_bytes, write_checkpoint, write_tensors
from tests.support.stops import stop_at

ROOT = Path(__file__).parents[2]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkpoint beside which the test converts."""
    return write_checkpoint(tmp_path / "source")


class StopAt:
    """A progress that raises when its `count`-th message comes."""

    def __init__(self, count: int, error: BaseException) -> None:
        self.left = count
        self.error = error
        self.finished = False

    def _tick(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error

    def start(self, phase: str, total_bytes: int) -> None:
        self._tick()

    def advance(self, nbytes: int) -> None:
        self._tick()

    def warn(self, text: str) -> None:
        self._tick()

    def finish(self) -> None:
        self.finished = True


def workers() -> list[str]:
    """Threads of a conversion that still live."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(("hashing", "writing"))]


def test_existing_destinations_are_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"precious")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("empty", "file", "link", "source"):
        with pytest.raises(DestinationExists, match=name):
            convert(source, tmp_path / name)
    assert (tmp_path / "file").read_bytes() == b"precious"
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "file", "link", "source"}


def test_destinations_that_cannot_be(source: Path, tmp_path: Path) -> None:
    with pytest.raises(CannotCreate, match="create it first"):
        convert(source, tmp_path / "no" / "such" / "place")
    with pytest.raises(CannotCreate, match="inside the checkpoint"):
        convert(source, source / "out")
    assert sorted(path.name for path in source.iterdir()) == [
        "config.json", "model.safetensors", "tokenizer.model",
    ]  # fmt: skip


def test_ctrl_c_at_every_message_leaves_nothing(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out", progress=(whole := StopAt(-1, KeyboardInterrupt())))
    messages = -1 - whole.left
    assert messages > 20
    shutil.rmtree(tmp_path / "out")
    for message in range(1, messages + 1):
        progress = StopAt(message, KeyboardInterrupt())
        with pytest.raises(Interrupted) as caught:
            convert(source, tmp_path / "out", progress=progress)
        assert caught.value.exit_code == 75
        assert progress.finished
        assert workers() == []
        assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("after", [False, True])
def test_a_stop_at_every_call_says_what_is_there(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Whatever a stop leaves is what the error says, and the next conversion works."""
    out, partial = tmp_path / "out", tmp_path / f"out.partial-{os.getpid()}"
    found = {"complete": 0, "nothing": 0, "unfinished": 0}
    for count in range(1, 1000):
        with stop_at(count, after=after) as stopped:
            try:
                convert(source, out)
                said = ""
            except Interrupted as error:
                said = str(error)
        if not stopped():
            break
        assert workers() == []
        if out.exists():
            assert verify(out).ok
            assert said in ("", f"stopped when the model was complete: it is at {out}, to be used")
            found["complete"] += 1
            shutil.rmtree(out)
        elif partial.exists():
            left = f"stopped; {partial} is left, unfinished; the next conversion to the same place"
            assert said.startswith(left)
            found["unfinished"] += 1
            shutil.rmtree(partial)
        else:
            assert said.startswith(f"stopped; nothing is left at {out}. The same command converts")
            found["nothing"] += 1
        assert [path.name for path in tmp_path.iterdir()] == ["source"]
    assert found["nothing"] >= 10
    assert found["unfinished"] <= 1  # just after the directory was made
    assert found["complete"] >= 1 + after  # between the rename and the end


def test_a_second_stop_while_it_cleans_up_says_what_is_left(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", stop)
        with pytest.raises(Interrupted) as raised:
            convert(source, tmp_path / "out", progress=StopAt(5, KeyboardInterrupt()))
    partial = tmp_path / f"out.partial-{os.getpid()}"
    assert str(raised.value) == (
        f"stopped; {partial} is left, unfinished; the next conversion to the same place removes it."
        " The same command converts again, from the beginning"
    )
    assert partial.is_dir()
    convert(source, tmp_path / "out")
    assert not partial.exists()


def test_a_stop_says_that_training_goes_on(source: Path, tmp_path: Path) -> None:
    work = tmp_path / "out.predictors-work"
    work.mkdir()
    with pytest.raises(Interrupted) as raised:
        convert(source, tmp_path / "out", progress=StopAt(5, KeyboardInterrupt()))
    assert str(raised.value) == (
        f"stopped; nothing is left at {tmp_path / 'out'}. What was trained is kept in {work}: the"
        " same command converts again and goes on training from there"
    )


def test_a_stop_says_nothing_of_what_was_there_before(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "out").mkdir()
    monkeypatch.setattr("flashllm.convert.pipeline.source_config", stop)
    with pytest.raises(Interrupted, match=r"out was there before, and is as it was$"):
        convert(source, tmp_path / "out")


def test_no_space_is_seen_before_anything_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = SimpleNamespace(f_bavail=10, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(NotEnoughSpace, match=r"[\d,]+ bytes are needed, 40,960 are free"):
        convert(source, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync", "rename", "mkdir"])
def test_every_write_may_fail(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """The Nth call fails, for N = 1, 2, ... until a run goes through."""
    expected = CannotCreate if number == errno.EIO else NotEnoughSpace
    monkeypatch.setattr(destination, "BLOCK_BYTES", 4096)  # so that threads write, too
    failures = 0
    while (
        said := _run_with_failure(
            source, tmp_path, monkeypatch, call, failures + 1, number, expected
        )
    ) is not None:
        failures += 1
        assert workers() == []
        left = {path.name for path in tmp_path.iterdir()} - {"source"}
        if left and call == "fsync":  # that of the parent, after the rename
            assert left == {"out"}
            assert said.startswith(f"{tmp_path / 'out'}: the model is complete, but {tmp_path} ")
            assert os.strerror(number) in said
            assert verify(tmp_path / "out").ok
            shutil.rmtree(tmp_path / "out")
        else:
            assert not left
            assert "complete" not in said
    assert failures >= {"write": 20, "fsync": 6, "rename": 1, "mkdir": 1}[call]
    assert verify(tmp_path / "out").ok


def _run_with_failure(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    nth: int,
    number: int,
    expected: type[FlashllmError],
) -> str | None:
    """What is said of its `nth` call, which fails; None where the conversion went through."""
    calls = 0

    def failing(real: Any) -> Any:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == nth:
                raise OSError(number, os.strerror(number))
            return real(*arguments, **options)

        return wrapper

    with monkeypatch.context() as patch:
        if call == "write":
            patch.setattr(destination, "open", failing_open(failing), raising=False)
        else:
            patch.setattr(os, call, failing(getattr(os, call)))
        try:
            convert(source, tmp_path / "out")
        except CannotCreate as error:
            failed, said = type(error), str(error)
        else:
            return None
    assert failed is expected
    return said


def failing_open(failing: Any) -> Any:
    """An `open` whose files fail in `write`."""

    def opened(*arguments: Any, **options: Any) -> Any:
        file = open(*arguments, **options)  # noqa: SIM115

        class Wrapped:
            write = staticmethod(failing(file.write))
            fileno = staticmethod(file.fileno)
            close = staticmethod(file.close)

        return Wrapped()

    return opened


def test_what_a_dead_process_left_is_removed(source: Path, tmp_path: Path) -> None:
    stale = tmp_path / "out.partial-12345"
    stale.mkdir()
    (stale / "ffn.bundles").write_bytes(b"half")
    other = tmp_path / "out.partial-notes"
    other.mkdir()

    convert(source, tmp_path / "out")

    assert not stale.exists()
    assert other.exists()


def test_a_living_rival_is_not_disturbed(source: Path, tmp_path: Path) -> None:
    with destination.partial_directory(tmp_path / "out") as partial:
        (partial / "work").write_bytes(b"of the first")
        with pytest.raises(CannotCreate, match=f"process {os.getpid()} is writing it"):
            convert(source, tmp_path / "out")
        assert (partial / "work").read_bytes() == b"of the first"


def test_a_destination_that_appears_meanwhile_is_kept(source: Path, tmp_path: Path) -> None:
    class Rival(StopAt):
        def finish(self) -> None:
            (tmp_path / "out").mkdir(exist_ok=True)

    with pytest.raises(DestinationExists, match="meanwhile"):
        convert(source, tmp_path / "out", progress=Rival(0, ValueError()))
    assert {path.name for path in tmp_path.iterdir()} == {"source", "out"}
    assert not list((tmp_path / "out").iterdir())


# However fast the disk is, there is time to interrupt; and a shell that started the tests in the
# background has made them ignore Ctrl-C, which a child would inherit.
SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from tools.convert import __main__ as command
from flashllm import progress
advance = progress.PlainProgress.advance
progress.PlainProgress.advance = lambda *given: (time.sleep(0.03), advance(*given))
sys.exit(command.main())
"""


# The same by the command that users have. What started the tests may ignore these signals, as nohup
# does; that would be inherited, and the command rightly leaves it so.
SLOW_COMMAND = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from flashllm.cli import main as cli
from flashllm import progress
advance = progress.PlainProgress.advance
progress.PlainProgress.advance = lambda *given: (time.sleep(0.03), advance(*given))
sys.exit(cli.main(["convert", *sys.argv[1:]]))
"""


def _start(source: Path, out: Path, script: str = SLOW) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, str(source), str(out)]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _wait_for_partial(tmp_path: Path) -> None:
    for _ in range(2000):
        if list(tmp_path.glob("out.partial-*/ffn.bundles")):
            return
        time.sleep(0.005)
    pytest.fail("the conversion did not begin")


@pytest.fixture
def large_source(tmp_path: Path) -> Path:
    """One that takes a while."""
    return write_checkpoint(
        tmp_path / "source",
        hidden_size=384,
        word_embed_proj_dim=384,
        ffn_dim=4096,
        num_hidden_layers=6,
    )


def test_a_real_ctrl_c(large_source: Path, tmp_path: Path) -> None:
    process = _start(large_source, tmp_path / "out")
    _wait_for_partial(tmp_path)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75
    assert "nothing is left" in stderr
    assert "Traceback" not in stderr
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_told_to_end_it_cleans_up(
    large_source: Path, tmp_path: Path, number: signal.Signals
) -> None:
    process = _start(large_source, tmp_path / "out", SLOW_COMMAND)
    _wait_for_partial(tmp_path)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75
    assert "nothing is left" in stderr
    assert "Traceback" not in stderr
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_kill_leaves_nothing_that_opens_and_the_next_run_succeeds(
    large_source: Path, tmp_path: Path
) -> None:
    process = _start(large_source, tmp_path / "out")
    _wait_for_partial(tmp_path)
    process.kill()
    process.communicate(timeout=60)
    (left,) = tmp_path.glob("out.partial-*")
    assert not (tmp_path / "out").exists()
    with pytest.raises(LayoutError, match="half of one"):
        read_manifest(left)

    convert(large_source, tmp_path / "out")

    assert not left.exists()
    assert verify(tmp_path / "out").ok


def write_predictors(path: Path, d_ffn: int, layers: int = 2) -> None:
    tensors: dict[str, Any] = {}
    for layer in range(layers):
        tensors[f"layers.{layer}.down"] = np.ones((4, 12), np.float16)
        tensors[f"layers.{layer}.up"] = np.ones((d_ffn, 4), np.float16)
        tensors[f"layers.{layer}.bias"] = np.ones(d_ffn, np.float32)
        tensors[f"layers.{layer}.threshold"] = np.ones(1, np.float32)
    write_tensors(path, tensors)


def test_predictors_are_copied_and_checked(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        convert(source, tmp_path / "out", predictors=tmp_path / "absent.safetensors")
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "activity.json").write_text('{"layers": [{}, {}]}')
    predictors = tmp_path / "p" / "predictors.safetensors"
    write_predictors(predictors, d_ffn=20)

    convert(source, tmp_path / "out", predictors=predictors)

    assert verify(tmp_path / "out").ok
    copied = all_bytes(tmp_path / "out")
    assert copied["predictors.safetensors"] == predictors.read_bytes()
    assert {"predictors.safetensors", "activity.json"} <= set(read_manifest(tmp_path / "out").files)

    write_predictors(predictors, d_ffn=21)
    with pytest.raises(LayoutError, match=r"layers.0.up is f16 \[21, 4\]; .* f16 \[20, 4\]"):
        convert(source, tmp_path / "other", predictors=predictors)
    write_predictors(predictors, d_ffn=20, layers=3)
    with pytest.raises(LayoutError, match=r"not the predictors of this model: layers\.2"):
        convert(source, tmp_path / "other", predictors=predictors)
    write_predictors(predictors, d_ffn=20)
    (tmp_path / "p" / "activity.json").write_text('{"layers": [{}]}')
    with pytest.raises(LayoutError, match="does not describe 2 layers"):
        convert(source, tmp_path / "other", predictors=predictors)
    with (tmp_path / "p" / "activity.json").open("r+b") as file:
        file.truncate(predictor_files.ACTIVITY_BYTES_MAX + 1)
    with pytest.raises(LayoutError, match=r"activity\.json: larger than"):
        convert(source, tmp_path / "other", predictors=predictors)
    assert not (tmp_path / "other").exists()
