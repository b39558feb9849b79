"""Which core and which instruction set are taken, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from flashllm import _core


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FLASHLLM_")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


FORKS = pytest.mark.skipif(
    not hasattr(os, "fork") or "FLASHLLM_SANITIZED_CORE" in os.environ,
    reason="no fork here, or one in which ASan may wait for a thread that is not there",
)
SHOW = "from flashllm import core; print(core.NAME, core.FALLBACK)"


def test_native_is_taken_where_it_was_built() -> None:
    assert run(SHOW).stdout.strip() == "native"


def test_the_twin_can_be_asked_for_and_says_so() -> None:
    assert run(SHOW, FLASHLLM_CORE="numpy").stdout.strip() == "numpy FLASHLLM_CORE=numpy"


def test_an_unknown_core_is_refused() -> None:
    finished = run(SHOW, FLASHLLM_CORE="fortran")
    assert finished.returncode == 1
    assert "expected native or numpy" in finished.stderr


def test_without_the_native_core_the_twin_says_why() -> None:
    hide = "import sys; sys.modules['flashllm._core'] = None; "
    assert run(hide + SHOW).stdout.startswith("numpy the native core is not there")
    assert "ModuleNotFoundError" in run(hide + SHOW, FLASHLLM_CORE="native").stderr


@pytest.mark.parametrize("isa", _core.available_isas())
def test_the_environment_chooses_the_instruction_set(isa: str) -> None:
    show = "from flashllm import _core; print(_core.Kernels().isa)"
    assert run(show, FLASHLLM_ISA=isa).stdout.strip() == isa


def test_an_unknown_instruction_set_is_refused() -> None:
    finished = run("from flashllm import _core; _core.Kernels()", FLASHLLM_ISA="mmx")
    assert "available: scalar" in finished.stderr


def test_an_unknown_instruction_set_is_an_error_of_ours() -> None:
    show = "from flashllm import core; core.open_kernels(1)"
    assert "UsageError: FLASHLLM_ISA: isa is 'mmx'" in run(show, FLASHLLM_ISA="mmx").stderr


def test_more_processors_than_kernels_take_are_no_error() -> None:
    show = "from flashllm import core; core._KERNEL_THREADS_MAX = 2; "
    assert run(show + "print(core.open_kernels(5000).threads)").stdout.strip() == "2"


def test_an_argument_goes_before_the_environment() -> None:
    show = "from flashllm import _core; print(_core.Kernels(isa='scalar').isa)"
    assert run(show, FLASHLLM_ISA="mmx").stdout.strip() == "scalar"


def test_the_back_end_of_reads_can_be_chosen() -> None:
    show = "from flashllm import core; print(core.IO_BACKEND)"
    assert run(show).stdout.strip() == "auto"
    assert run(show, FLASHLLM_IO="threads").stdout.strip() == "threads"
    finished = run(show, FLASHLLM_IO="tape")
    assert finished.returncode != 0
    assert "UsageError: FLASHLLM_IO is 'tape'" in finished.stderr


def test_scalar_comes_first_and_the_best_is_the_default() -> None:
    isas = _core.available_isas()
    assert isas[0] == "scalar"
    shown = run("from flashllm import _core; print(_core.Kernels().isa)").stdout.strip()
    assert shown == isas[-1]


FORK = """
import os, sys, warnings
import numpy as np
warnings.simplefilter("ignore")
from flashllm import _core
reader = _core.Reader(sys.executable, backend="{backend}")
kernels = _core.Kernels(2)
rows, x, out = np.ones(1 << 20, np.float32), np.ones(1024, np.float32), np.empty(1024, np.float32)
child = os.fork()
if child == 0:
    try:
        reader.submit(np.zeros(1, np.int64), 512, _core.Buffer(512), np.zeros(1, np.int64))
    except ValueError as error:
        kernels.matvec(rows.view(np.uint8), "f32", x, out)
        print("child:", error, int(out.sum()), flush=True)
    del reader, kernels
    os._exit(0)
print("parent:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
reader.read(np.zeros(1, np.int64), 512, _core.Buffer(512), np.zeros(1, np.int64))
"""


@FORKS
@pytest.mark.parametrize("backend", ["threads", "uring"])
def test_a_forked_child_neither_hangs_nor_reads(backend: str) -> None:
    finished = run(FORK.replace("{backend}", backend))
    assert finished.returncode == 0, finished.stderr
    assert "belongs to the process before fork 1048576" in finished.stdout
    assert "parent: 0" in finished.stdout


FORGOTTEN = """
import mmap, os, sys, warnings
warnings.simplefilter("ignore")
from flashllm import _core
reader = _core.Reader(sys.executable, backend="{backend}")
child = os.fork()
if child == 0:
    # Of many sizes, so that some lie where the parent has what the child was not given.
    memory = [mmap.mmap(-1, 4096 * pages) for pages in (1, 2, 3, 4) for _ in range(64)]
    del reader
    for pages in memory:
        pages[:] = bytes(len(pages))
    os._exit(0)
print("child:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@FORKS
@pytest.mark.parametrize("backend", ["threads", "uring"])
def test_a_forked_child_that_drops_a_reader_keeps_its_own_memory(backend: str) -> None:
    finished = run(FORGOTTEN.replace("{backend}", backend))
    assert finished.stdout.strip() == "child: 0", finished.stderr


SIGNALS = """
import os, signal, threading, time
from flashllm import _core
import sys
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(threading.current_thread().name))
reader, kernels = _core.Reader(sys.executable, backend="{backend}"), _core.Kernels(3)
masks = []
for task in os.listdir("/proc/self/task"):
    fields = dict(l.split(":", 1) for l in open(f"/proc/self/task/{task}/status"))
    masks.append((int(task) == os.getpid(), bool(int(fields["SigBlk"], 16) & 0x2)))
assert len(masks) >= 1 + (32 if reader.backend == "threads" else 1) + 2
print(sorted(set(masks)))
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="no /proc here")
@pytest.mark.parametrize("backend", ["threads", "uring"])
def test_threads_leave_the_signals_to_the_main_thread(backend: str) -> None:
    # OpenBLAS, which numpy brings, starts threads of its own that block nothing.
    finished = run(SIGNALS.replace("{backend}", backend), OPENBLAS_NUM_THREADS="1")
    assert finished.stdout.strip() == "[(False, True), (True, False)]", finished.stderr
