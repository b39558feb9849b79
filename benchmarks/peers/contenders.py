"""The programs that are compared: how each is started, and how its output is read."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.peers.files import Checkpoint
from benchmarks.peers.gguf_encoding import OURS as ENCODINGS
from benchmarks.peers.worker import Task, arguments_of
from flashllm.errors import UsageError

ROOT = Path(__file__).parents[2]
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
OURS = "flashllm"
PACKAGES = {"accelerate": ("accelerate", "transformers"), "llama.cpp": ("llama-cpp-python",)}
PROBE_SECONDS = 120
INSTALL = "make peers"
PARAMETERS_ERROR_MAX = 0.02
"""A GGUF that differs by more from the checkpoint is another model's."""
_MARGIN_LEAST_BYTES = 64 << 20
_MARGIN_SHARE = 64


@dataclass(frozen=True, slots=True)
class Contender:
    """One of those that are measured."""

    name: str
    files: tuple[Path, ...]
    """What it reads its weights from; dropped from the page cache before each run."""
    parameters: int
    command: Callable[[Task], list[str]]
    parse: Callable[[str], dict[str, Any]]
    task: Task
    versions: dict[str, str | None]
    weight_bits: float = 0.0
    """Bits that a weight takes, scales of groups included."""
    fallback: Task | None = None
    """The task that replaces it after a crash without a limit."""

    def under(self, limit_bytes: int | None) -> list[str]:
        """What to run, under a limit of memory or without."""
        return self.command(replace(self.task, limit_bytes=limit_bytes))


def memory_ceiling_bytes(limit_bytes: int) -> int:
    """Our own ceiling under a limit of the kernel's.

    The ceiling is for resident memory; the kernel also counts its tables and buffered files.
    """
    return max(1, limit_bytes - max(_MARGIN_LEAST_BYTES, limit_bytes // _MARGIN_SHARE))


def our_command(task: Task) -> list[str]:
    """`flashllm run`: the prompt gives the first token, so one more than is timed.

    Where it is not to be the first prompt of its process, a worker.
    """
    threads = ["env", f"OMP_NUM_THREADS={task.threads}"]
    if task.warm:
        return [*threads, *worker_command(Path(sys.executable), "ours", task)]
    command = [*threads, sys.executable, "-m", "flashllm", "run", str(task.model), "--jsonl"]
    command += ["--ids", ",".join(map(str, task.ids)), "-n", str(task.tokens + 1)]
    command += ["--ctx-size", str(task.context)]  # as much as the peers get
    if task.select is not None:
        command += ["--select", task.select]
    if task.limit_bytes is not None:
        command += ["--memory", str(memory_ceiling_bytes(task.limit_bytes))]
    return command


def parse_ours(stdout: str) -> dict[str, Any]:
    """The output of `flashllm run --jsonl`, in the form of a worker's, or that of our worker."""
    lines = [json.loads(line) for line in stdout.splitlines() if line]
    report = lines[-1]
    if "samples_ns" in report:
        return dict(report)
    tokens = [line for line in lines if line["type"] == "token"]
    settings = report["settings"]
    return {
        "how": f"select {settings['select']}, window {settings['window']}",
        "prefill_ns": report["prefill"]["wall_ns"],
        "samples_ns": [line["cost"]["wall_ns"] for line in tokens[1:]],
        "rss_peak_bytes": report["memory"]["rss_peak_bytes"],
        "tokens": report["tokens"],
        "facts": {key: report[key] for key in ("settings", "memory", "decode") if key in report},
    }


def worker_command(python: Path, module: str, task: Task) -> list[str]:
    """A worker of a peer."""
    return [str(python), "-m", f"benchmarks.peers.{module}", *arguments_of(task)]


def parse_worker(stdout: str) -> dict[str, Any]:
    """Its last line."""
    found: dict[str, Any] = json.loads(stdout.splitlines()[-1])
    return found


def peers_python() -> Path:
    """The interpreter that has the peers: of their own environment, or else this one."""
    return PEERS_PYTHON if PEERS_PYTHON.exists() else Path(sys.executable)


def installed_versions(python: Path) -> dict[str, str | None]:
    """Versions of the peers' packages in that interpreter's environment; None for those absent."""
    names = [name for packages in PACKAGES.values() for name in packages]
    code = (
        "import importlib.metadata as m, json, sys\n"
        "def v(n):\n try: return m.version(n)\n except m.PackageNotFoundError: return None\n"
        "print(json.dumps({n: v(n) for n in sys.argv[1:]}))"
    )
    found = json.loads(_ask(python, "-c", code, *names))
    return {name: found[name] for name in names}


@dataclass(frozen=True, slots=True)
class Gguf:
    """What is known of a GGUF."""

    parameters: int
    file_bytes: int

    @property
    def weight_bits(self) -> float:
        """Of the whole file; what is no weight in it is next to nothing."""
        return 8 * self.file_bytes / self.parameters


def gguf_command(python: Path, checkpoint: Checkpoint, dtype: str, file: str) -> list[str]:
    """What makes the GGUF that a model of ours in `dtype` is compared with."""
    command = [str(python), "-m", "benchmarks.peers.gguf_model", str(checkpoint.directory), file]
    return [*command, "--dtype", ENCODINGS[dtype]]


def check_gguf(python: Path, file: Path, checkpoint: Checkpoint, dtype: str) -> Gguf:
    """What a GGUF holds; `UsageError` where it is none, or of another size or encoding.

    `dtype` is that of our own model.
    """
    advice = f"make one with: {shlex.join(gguf_command(python, checkpoint, dtype, 'FILE.gguf'))}"
    if not file.is_file():
        raise UsageError(f"{file}: there is no such file; {advice}")
    found = json.loads(_ask(python, "-m", "benchmarks.peers.gguf_model", "--describe", str(file)))
    parameters, encoding = int(found["parameters"]), str(found["encoding"])
    if abs(parameters / checkpoint.parameters - 1) > PARAMETERS_ERROR_MAX:
        raise UsageError(
            f"{file}: {parameters:,} parameters, but {checkpoint.directory} has "
            f"{checkpoint.parameters:,}; {advice}"
        )
    if encoding not in (dtype, ENCODINGS[dtype]):
        raise UsageError(f"{file}: its weights are {encoding}, ours are {dtype}; {advice}")
    return Gguf(parameters, int(found["bytes"]))


def environment() -> dict[str, str]:
    """For a process of a peer: this project is importable, the network is not asked."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _ask(python: Path, *arguments: str) -> str:
    """What a short command prints; `UsageError` with its last line where it fails."""
    try:
        done = subprocess.run(
            [str(python), *arguments],
            capture_output=True,
            text=True,
            check=True,
            env=environment(),
            timeout=PROBE_SECONDS,
        )
    except subprocess.CalledProcessError as problem:
        last = (problem.stderr.strip().splitlines() or ["no message"])[-1]
        raise UsageError(last.removeprefix("gguf_model: ")) from problem
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise UsageError(f"{python}: {problem}; run `{INSTALL}`") from problem
    return done.stdout
