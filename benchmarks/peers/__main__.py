"""Compares programs in the same memory: `python -m benchmarks.peers MODEL --checkpoint DIR [...]`.

Compares flashllm with Hugging Face accelerate on the same checkpoint (what does not fit in RAM is
left on disk) and with llama.cpp on a GGUF of as many parameters and bits (mapped into memory), on
the CPU, decoding greedily from the same token ids. MODEL may be in int8, int4 or mxfp4: the GGUF is
then in q8_0, q4_0 or mxfp4, and accelerate, which has no such weights, is left out.

- under one memory limit, set by a control group (page cache counts; swap is no way out), and
  without any;
- in turns, flashllm before and after each peer; the page cache is dropped before each run;
- seconds a token are the mean of a run's tokens after the prompt, then the median over the runs;
- with --prompts, for prompts of several lengths, each the first of its process, or with --warm
  the second, whose weights are in memory as far as there is room;
- on as many threads each.

`make peers` installs the peers into .venv-peers; what is not there is skipped and named. A slow
run of a peer ends after --seconds, with 4 tokens at least; ours decodes all --tokens. A GGUF is
written by benchmarks.peers.gguf_model.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from benchmarks.memory_limit import MemoryLimitError, limited
from benchmarks.peers.contenders import (
    INSTALL,
    OURS,
    PACKAGES,
    Contender,
    check_gguf,
    gguf_command,
    installed_versions,
    our_command,
    parse_ours,
    parse_worker,
    peers_python,
    worker_command,
)
from benchmarks.peers.files import (
    QUANTISED,
    Checkpoint,
    model_files,
    read_checkpoint,
    read_model,
)
from benchmarks.peers.runs import Outcome, interleaved
from benchmarks.peers.table import report, rows_of, table
from benchmarks.peers.worker import Task, physical_cores
from flashllm import __version__
from flashllm.bench.header import run_header
from flashllm.bench.steal_time import format_steal_share, stolen_warning
from flashllm.cli.main import EXIT_BROKEN_PIPE
from flashllm.cli.shared.flags import argument
from flashllm.cli.shared.output import Output
from flashllm.errors import (
    EXIT_INTERRUPTED,
    CannotCreate,
    FlashllmError,
    ModelNotFound,
    ReadFailed,
    UsageError,
)
from flashllm.flash.manifest import read_manifest
from flashllm.planning.shape_estimate import Weights
from flashllm.settings.values import parse_ids, parse_number, parse_positive, parse_size
from flashllm.system.atomic_file import write_whole
from flashllm.units import format_bytes
from flashllm.untrusted.terminal import sanitize_line

IDS = "5,6,7,8,9,10,11,12"
FIRST_RANDOM_ID = 5
"""Ids before are marks of beginnings and ends in many vocabularies."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="a converted model")
    add("--checkpoint", type=Path, required=True, metavar="SRC",
        help="what it was made from: a directory, or the GGUF itself")  # fmt: skip
    add("--gguf", type=Path, metavar="FILE", help="for llama.cpp; left out without one")
    add("--limit", type=argument(parse_size), metavar="SIZE", help="(half of the weights)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--no-limit", action="store_true", help="only without a limit")
    which.add_argument("--only-limit", action="store_true", help="only under the limit")
    add("--rounds", type=argument(parse_positive), default=3, metavar="N", help="(3)")
    add("--tokens", type=argument(parse_positive), default=16, metavar="N", help="in a run (16)")
    add(
        "--seconds",
        type=argument(parse_number),
        default=60.0,
        metavar="T",
        help="ends a peer's slow run; ours decodes all --tokens (60)",
    )
    add("--ids", type=argument(parse_ids), default=parse_ids(IDS), metavar="IDS", help=f"({IDS})")
    add(
        "--prompts",
        type=argument(parse_lengths),
        metavar="N,N",
        help="prompts of so many random ids, each in turn, instead of --ids",
    )
    add("--warm", action="store_true",
        help="the second prompt of each process counts; one as long goes before")  # fmt: skip
    add("--threads", type=argument(parse_positive), metavar="N",
        help="of every contender (cores, without their second threads)")  # fmt: skip
    add("--select", metavar="HOW", help="passed on to flashllm")
    add("--json", type=Path, metavar="FILE", help="keep the report there; else it is printed last")
    return parser.parse_args(arguments)


def parse_lengths(text: str) -> list[int]:
    """`8,64,512` as numbers."""
    return [parse_positive(part) for part in text.split(",")]


def prompts_of(options: argparse.Namespace, vocab_size: int) -> list[list[int]]:
    """The ids of each prompt: those given, or random ones, which are the same each time."""
    if options.prompts is None:
        return [options.ids]
    random = Random(0)
    return [
        [random.randrange(FIRST_RANDOM_ID, vocab_size) for _ in range(n)] for n in options.prompts
    ]


def ours(options: argparse.Namespace, checkpoint: Checkpoint, task: Task) -> Contender:
    """flashllm on the converted model; `UsageError` where that is another checkpoint's."""
    manifest = read_model(options.model, checkpoint)
    return Contender(
        OURS,
        model_files(options.model, manifest),
        checkpoint.parameters,
        our_command,
        parse_ours,
        replace(task, model=options.model, select=options.select),
        {OURS: __version__},
        8 * Weights.of(manifest.spec).total / checkpoint.parameters,
    )


def peers(
    options: argparse.Namespace, checkpoint: Checkpoint, task: Task, dtype: str
) -> tuple[list[Contender], list[str]]:
    """The peers that are installed and have their files; and why others are left out.

    `dtype` is that of our own model.
    """
    versions = installed_versions(peers_python())
    found, skipped = [], []
    for name, make in (("accelerate", _accelerate), ("llama.cpp", _llama_cpp)):
        own = {package: versions[package] for package in PACKAGES[name]}
        absent = [package for package, version in own.items() if version is None]
        if absent:
            skipped.append(f"{name}: {', '.join(absent)} not installed; run `{INSTALL}`")
            continue
        made = make(options, checkpoint, task, dtype)
        if isinstance(made, str):
            skipped.append(f"{name}: {made}")
        else:
            found.append(replace(made, versions=own))
    return found, skipped


def _accelerate(
    _: argparse.Namespace, checkpoint: Checkpoint, task: Task, dtype: str
) -> Contender | str:
    if dtype in QUANTISED:
        return (
            f"it has no weights like those in {dtype}, of which 32 share a scale of 16 bits;"
            f" compare in {checkpoint.spec.dtype}"
        )
    return Contender(
        "accelerate",
        checkpoint.files,
        checkpoint.parameters,
        functools.partial(worker_command, peers_python(), "accelerate"),
        parse_worker,
        replace(task, model=checkpoint.directory),
        {},
        8 * checkpoint.weight_bytes / checkpoint.parameters,
    )


def _llama_cpp(
    options: argparse.Namespace, checkpoint: Checkpoint, task: Task, dtype: str
) -> Contender | str:
    python = peers_python()
    if options.gguf is None:
        command = shlex.join(gguf_command(python, checkpoint, dtype, "FILE.gguf"))
        return f"no --gguf; make one with: {command}"
    gguf = check_gguf(python, options.gguf, checkpoint, dtype)
    task = replace(task, model=options.gguf)
    return Contender(
        "llama.cpp",
        (options.gguf,),
        gguf.parameters,
        functools.partial(worker_command, python, "llama_cpp"),
        parse_worker,
        task,
        {},
        gguf.weight_bits,
        # On processors with AMX it was seen to crash with quantised weights in another order.
        replace(task, as_stored=True),
    )


def limits(options: argparse.Namespace, weight_bytes: int) -> tuple[list[int | None], str]:
    """The limits to run under, and why the first is left out where it cannot be set."""
    if options.no_limit:
        return [None], ""
    limit_bytes = weight_bytes // 2 if options.limit is None else options.limit
    without: list[int | None] = [] if options.only_limit else [None]
    try:
        with limited(limit_bytes) as group:
            group.check_joinable()
            return [group.limit_bytes, *without], ""
    except MemoryLimitError as problem:
        if not without:
            raise
        return without, f"all rows under {format_bytes(limit_bytes)}: {problem}"


def measure(options: argparse.Namespace) -> int:
    """Check everything, run everything, keep what there is whenever it ends."""
    if options.json is not None and not os.path.isdir(options.json.absolute().parent):
        raise CannotCreate(f"{options.json}: its directory does not exist; create it first")
    if not options.ids:
        raise UsageError("--ids is empty; give at least one token id")
    checkpoint = read_checkpoint(options.checkpoint)
    threads = options.threads or physical_cores()
    task = Task(
        options.model, options.ids, options.tokens, options.seconds, None, threads,
        warm=options.warm,
    )  # fmt: skip
    first = ours(options, checkpoint, task)
    if max(options.ids) >= checkpoint.spec.vocab_size:
        raise UsageError(f"--ids: the vocabulary ends at {checkpoint.spec.vocab_size - 1}")
    spec = read_manifest(options.model).spec
    others, skipped = peers(options, checkpoint, task, spec.dtype)
    contenders = [first, *others]
    under, reason = limits(options, Weights.of(spec).total)
    skipped += [reason] if reason else []
    for line in skipped:
        remark(f"left out: {line}")
    header = run_header(options.model, {**_plain(options), "threads": threads, "limits": under})
    outcomes: list[Outcome] = []
    made = functools.partial(report, header, contenders, outcomes, skipped)
    prompts = prompts_of(options, checkpoint.spec.vocab_size)
    asked = [
        [replace(one, task=replace(one.task, ids=ids)) for one in contenders] for ids in prompts
    ]
    complete, problem = run_all(options, asked, under, outcomes, made)
    kept = False
    try:
        kept = keep(options.json, made(complete))
    except CannotCreate as error:
        problem = problem or error
    rows = rows_of(contenders, outcomes)
    output = Output()
    output.write(table(rows, skipped, complete=complete, synthetic=header["synthetic"]))
    if warning := stolen_warning([outcome.stolen_share for outcome in outcomes]):
        remark(warning)
    if not kept:
        output.json(made(complete))
    if problem is not None:
        raise problem
    return 0 if complete else EXIT_INTERRUPTED


def run_all(
    options: argparse.Namespace,
    asked: Sequence[Sequence[Contender]],
    under: Sequence[int | None],
    outcomes: list[Outcome],
    made: Callable[[bool], dict[str, Any]],
) -> tuple[bool, FlashllmError | None]:
    """Does all runs, saving each in `outcomes`; returns whether all ended, and what went wrong if
    not.

    `asked` has the contenders with each prompt. The results may have taken hours, so no error may
    lose them.
    """
    try:
        for limit_bytes, contenders in itertools.product(under, asked):
            for outcome in interleaved(contenders, options.rounds, limit_bytes):
                outcomes.append(outcome)
                remark(progress_line(outcome))
                keep(options.json, made(False))
    except KeyboardInterrupt:
        remark("interrupted; what was measured until now is kept")
        return False, None
    except FlashllmError as error:
        return False, error
    except OSError as error:
        return False, our_error(error)
    return True, None


def our_error(error: OSError) -> FlashllmError:
    """Our error for a file that has vanished or cannot be read any more."""
    kind = ModelNotFound if isinstance(error, FileNotFoundError) else ReadFailed
    return kind(
        f"{error.filename or 'a run'}: {error.strerror or error}; was it changed meanwhile? The"
        " runs up to then are kept"
    )


def keep(path: Path | None, found: dict[str, Any]) -> bool:
    """Replace the report on disk atomically; False if none is wanted."""
    if path is None:
        return False
    try:
        write_whole(path, (json.dumps(found, indent=1) + "\n").encode())
    except OSError as problem:
        raise CannotCreate(f"{path}: cannot be written: {problem.strerror}") from problem
    return True


def progress_line(outcome: Outcome) -> str:
    """A line about the result of one run."""
    limit = "no limit" if outcome.limit_bytes is None else format_bytes(outcome.limit_bytes)
    prompt = f"{outcome.prompt_tokens} tokens"
    what = f"round {outcome.round + 1}, {limit}, prompt of {prompt}, {outcome.contender}: "
    stolen = f", stolen {format_steal_share(outcome.stolen_share)}"
    if outcome.status != "ok":
        return f"{what}{outcome.status}: {outcome.message}{stolen}"
    cached = outcome.cached_share_before
    state = "" if cached is None else f", {cached:.1%} in the page cache before"
    first = f"first token after {outcome.prefill_ns / 1e9:.3g} s, then"
    return f"{what}{first} {outcome.token_seconds:.3g} s/token{state}{stolen}"


def remark(text: str) -> None:
    """One line on standard error."""
    print(f"peers: {sanitize_line(text)}", file=sys.stderr, flush=True)


def _plain(options: argparse.Namespace) -> dict[str, Any]:
    values = vars(options).items()
    return {name: str(value) if isinstance(value, Path) else value for name, value in values}


@contextlib.contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """SIGTERM stops the runs and keeps the report, as Ctrl-C does."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = parse(arguments)
    try:
        with _ended_like_ctrl_c():
            return measure(options)
    except FlashllmError as error:
        remark(str(error))
        return error.exit_code
    except BrokenPipeError:
        # What reads our output has gone; nothing more can be said there, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        remark("interrupted before anything was measured")
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
