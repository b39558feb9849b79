"""Runs the contenders, each run in a process of its own, interleaved: A, B, C, A, B, C, A."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from benchmarks.memory_limit import Usage, limited
from benchmarks.page_cache import cached_share, drop_page_cache
from benchmarks.peers.contenders import Contender, environment
from benchmarks.peers.worker import TOKENS_LEAST
from flashllm.bench.steal_time import ProcessorTime
from flashllm.errors import MemoryCeilingTooSmall

Status = Literal["ok", "killed", "refused", "failed", "too slow"]
RUN_SECONDS_MAX = 1800.0
MESSAGE_CHARACTERS_MAX = 300
EARLY_TOKENS = 20
"""What a user waits for first; caches may still be filling."""
LATE_TOKENS = slice(99, 120)
"""Tokens 100 to 120."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run, and how it ended; times in nanoseconds."""

    contender: str
    round: int
    limit_bytes: int | None
    status: Status
    message: str = ""
    how: str = ""
    """What it did with its memory, in its own words."""
    wall_ns: int = 0
    prefill_ns: int = 0
    first_prefill_ns: int | None = None
    """What the prompt before took, which was the first of the process."""
    samples_ns: tuple[int, ...] = ()
    """Of each token after the prompt, in order."""
    rss_peak_bytes: int = 0
    cached_share_before: float | None = None
    """Of the files that it reads its weights from."""
    stolen_share: float | None = None
    """Of all processors' time while it ran; None where it is unknown."""
    group: Usage | None = None
    prompt_tokens: int = 0
    tokens: tuple[int, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def token_seconds(self) -> float:
        """The mean over the tokens after the prompt."""
        return sum(self.samples_ns) / len(self.samples_ns) / 1e9

    @property
    def early_token_seconds(self) -> float:
        """The mean over the first tokens after the prompt, EARLY_TOKENS at most."""
        early = self.samples_ns[:EARLY_TOKENS]
        return sum(early) / len(early) / 1e9

    @property
    def late_token_seconds(self) -> float | None:
        """The mean over tokens 100 to 120; None where there are fewer."""
        late = self.samples_ns[LATE_TOKENS]
        return sum(late) / len(late) / 1e9 if late else None

    @property
    def start_seconds(self) -> float:
        """Everything but prompts and tokens: the interpreter, libraries, loading."""
        prompts_ns = self.prefill_ns + (self.first_prefill_ns or 0)
        return (self.wall_ns - prompts_ns - sum(self.samples_ns)) / 1e9

    def to_json(self) -> dict[str, Any]:
        """Plain values, the derived ones included."""
        derived: dict[str, Any] = {}
        if self.status == "ok":
            derived = {"token_seconds": self.token_seconds, "start_seconds": self.start_seconds}
        if self.group is not None:
            derived["limit_held"] = self.group.held
        return asdict(self) | derived


def interleaved(
    contenders: Sequence[Contender], rounds: int, limit_bytes: int | None
) -> Iterator[Outcome]:
    """All runs under one limit, the first contender also once after the last round.

    One that failed is not tried again, since it would take time and fail again. Only after a crash
    without a limit it continues with its fallback, if it has one.
    """
    out: set[str] = set()
    now = {contender.name: contender for contender in contenders}
    turns = [(number, contender) for number in range(rounds) for contender in contenders]
    if len(contenders) > 1:
        turns.append((rounds, contenders[0]))
    for number, contender in turns:
        if contender.name in out:
            continue
        outcome = run_once(now[contender.name], number, limit_bytes)
        yield outcome
        fallback = now[contender.name].fallback
        if outcome.status == "killed" and limit_bytes is None and fallback is not None:
            now[contender.name] = replace(contender, task=fallback, fallback=None)
            outcome = run_once(now[contender.name], number, limit_bytes)
            yield outcome
        if outcome.status != "ok":
            out.add(contender.name)


def run_once(contender: Contender, number: int, limit_bytes: int | None) -> Outcome:
    """One process from start to end, the page cache dropped before."""
    drop_page_cache(contender.files)
    share = cached_share(contender.files)
    command = contender.under(limit_bytes)
    with contextlib.ExitStack() as stack:
        usage: Callable[[], Usage | None] = lambda: None  # noqa: E731
        if limit_bytes is not None:
            group = stack.enter_context(limited(limit_bytes))
            command, usage = group.command(command), group.usage
        processors, start_ns = ProcessorTime.now(), time.perf_counter_ns()
        code, stdout, stderr = _communicate(command)
        wall_ns = time.perf_counter_ns() - start_ns
        stolen_share = ProcessorTime.now().stolen_share_since(processors)
        used = usage()
    status, message = _judge(code, stderr, used)
    found: dict[str, Any] = {}
    if status == "ok":
        status, message, found = _read(contender, stdout)
    return Outcome(
        contender=contender.name,
        round=number,
        limit_bytes=limit_bytes,
        status=status,
        message=message[:MESSAGE_CHARACTERS_MAX],
        how=found.get("how", ""),
        wall_ns=wall_ns,
        prefill_ns=found.get("prefill_ns", 0),
        first_prefill_ns=found.get("first_prefill_ns"),
        samples_ns=tuple(found.get("samples_ns", ())),
        rss_peak_bytes=found.get("rss_peak_bytes", 0),
        cached_share_before=share,
        prompt_tokens=len(contender.task.ids),
        stolen_share=stolen_share,
        group=used,
        tokens=tuple(found.get("tokens", ())),
        facts=found.get("facts", {}),
    )


def _communicate(command: Sequence[str]) -> tuple[int | None, str, str]:
    """Exit code (None: took too long), output and errors; whatever happens, nobody is left."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment(),
        start_new_session=True,  # Ctrl-C reaches us alone, and we end all of its processes
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=RUN_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            _kill(process)
            return None, "", ""
        except BaseException:
            _kill(process)
            raise
    return process.returncode, stdout, stderr


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _judge(code: int | None, stderr: str, used: Usage | None) -> tuple[Status, str]:
    """What an exit code means; of what was said, the last line."""
    said = (stderr.strip().splitlines() or ["no message"])[-1]
    if code == 0:
        return "ok", ""
    if code is None:
        return "too slow", f"not done after {RUN_SECONDS_MAX:.0f} s"
    if used is not None and used.kills:
        return "killed", "out of memory under the limit"
    if code < 0:
        return "killed", f"by signal {signal.Signals(-code).name}"
    if code == MemoryCeilingTooSmall.exit_code:
        return "refused", said.removeprefix("flashllm: ")
    return "failed", f"exit code {code}: {said}"


def _read(contender: Contender, stdout: str) -> tuple[Status, str, dict[str, Any]]:
    """What it found; a failure where that cannot be read, or is too little."""
    try:
        found = contender.parse(stdout)
        tokens = len(found["samples_ns"])
    except (ValueError, KeyError, IndexError, TypeError) as problem:
        return "failed", f"its output cannot be read ({problem!r})", {}
    least = min(TOKENS_LEAST, contender.task.tokens)
    if tokens < least:
        return "failed", f"the answer ended after {tokens + 1} tokens; give other --ids", {}
    return "ok", "", found
