"""`make crashtest`: kill -9 of a conversion before each call that writes.

Before the Nth write, fsync, rename, mkdir, unlink, creation or allocation of a conversion, N = 1,
2, 3 ... until one comes to its end, the process is killed. Afterwards the model is absent, can be
resumed, or is complete; the next conversion makes the same bytes as one that nobody disturbed.
Beside a complete one may lie what is left of its source, where the kill came just after the model
got its name; a conversion to the same place, once the model is removed, does not mind it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from flashllm.convert import verify

from flashllm.errors import FlashllmError
from flashllm.flash.store import Store
from flashllm.flash.unfinished import pulled_path
from tests.support.checkpoints import all_bytes
from tests.support.conversions import Convert, clear, conversions
from tests.support.fault_shim import ROOT, ShimInjector, environment, say
from tests.support.faults import KILL


def crash(convert: Convert, directory: Path, every: int) -> dict[str, int]:
    """Kills one conversion after the other; how many, and what was there afterwards."""
    directory.mkdir(exist_ok=True)
    destination = directory / "model"
    assert in_child(lambda: convert(destination)) == 0
    expected = all_bytes(destination)
    clear(directory)
    found = {"killed": 0, "absent": 0, "resumed": 0, "complete": 0}
    nth = 1
    while True:
        status = in_child(lambda nth=nth: killed(convert, destination, nth))  # type: ignore[misc]
        if status == 0:
            assert all_bytes(destination) == expected
            return found
        assert os.WIFSIGNALED(status), f"call {nth}: status {status}"
        found["killed"] += 1
        found[state_of(destination, expected, nth)] += 1
        left = pulled_path(destination)
        if destination.exists() and left.exists():
            assert not (left / "model").exists(), f"call {nth}"
            shutil.rmtree(destination)
        if not destination.exists():
            assert in_child(lambda: convert(destination)) == 0, f"call {nth}: not resumed"
        assert all_bytes(destination) == expected, f"call {nth}"
        assert clear(directory) == [destination.name], f"call {nth}"
        nth += every


def killed(convert: Convert, destination: Path, nth: int) -> None:
    """A conversion that does not survive its Nth call that writes."""
    ShimInjector("change", str(destination.parent)).arm(KILL, nth, for_ever=False)
    convert(destination)


def state_of(destination: Path, expected: dict[str, bytes], nth: int) -> str:
    """What a killed conversion left; nothing that opens may be wrong."""
    if destination.exists():
        assert all_bytes(destination) == expected, f"call {nth}: a wrong model"
        assert verify(destination).ok, f"call {nth}"
        return "complete"
    kept = pulled_path(destination).exists()
    for path in destination.parent.iterdir():
        try:
            Store(path).close()
        except FlashllmError:
            continue
        assert verify(path).ok, f"call {nth}: {path.name} opens and is wrong"
    return "resumed" if kept else "absent"


def in_child(work: Callable[[], None]) -> int:
    """The status of a child process that does the work: 0, or how it ended."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001  the child ends here, and says why
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth call")
    parser.add_argument("--here", type=Path, help="directory to work in; a temporary one if absent")
    arguments = parser.parse_args()
    if "shim" not in os.environ.get("LD_PRELOAD", ""):
        os.chdir(ROOT)
        command = [sys.executable, "-m", "tests.faults.crashtest", *sys.argv[1:]]
        os.execve(sys.executable, command, environment())
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.here or Path(temporary)
        for name, convert in conversions(directory).items():
            found = crash(convert, directory / name, arguments.every)
            say(what=name, **found)


if __name__ == "__main__":
    main()
