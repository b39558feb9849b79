"""Rows of random tokens, runs of `flashllm batch` on them, and this machine's rates beside them."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.memory_limit import limited
from benchmarks.own_command import CommandError, ask
from benchmarks.peers.contenders import environment, memory_ceiling_bytes
from flashllm import core
from flashllm.errors import UsageError
from flashllm.hardware.machine_profile import Profile, load
from flashllm.planning.cost_model import CHUNK, OWN, ResidentBytes
from flashllm.planning.ways_to_read import MAX_READ_BYTES
from flashllm.spec import ModelSpec

FIRST_ID = 10
"""Ids before are marks of beginnings and ends in many vocabularies."""


@dataclass(frozen=True, slots=True)
class Case:
    """Rows of one length of prompts and of answers."""

    prompt_tokens: int
    new_tokens: int

    @property
    def context(self) -> int:
        """Tokens for which a row has room."""
        return self.prompt_tokens + self.new_tokens + 1


def parse_case(text: str) -> Case:
    """`256+32`: tokens of a prompt and of its answer; `UsageError` for anything else."""
    try:
        case = Case(*map(int, text.split("+")))
    except (TypeError, ValueError):
        case = Case(0, 0)
    if min(case.prompt_tokens, case.new_tokens) < 1:
        raise UsageError(f"{text!r}: expected a case like 64+16")
    return case


def random_prompts(vocab_size: int, rows: int, case: Case, seed: int = 0) -> list[list[int]]:
    """Prompts that share no beginning, the same ones each time."""
    random = Random(seed)
    return [
        [random.randrange(FIRST_ID, vocab_size) for _ in range(case.prompt_tokens)]
        for _ in range(rows)
    ]


def write_rows(path: Path, prompts: Sequence[Sequence[int]], new_tokens: int) -> Path:
    """A file of rows for `flashllm batch`."""
    rows = ({"prompt": list(ids), "max_tokens": new_tokens} for ids in prompts)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def run_batch(
    model: Path, rows: Path, case: Case, flags: Sequence[str], limit_bytes: int | None = None
) -> dict[str, Any]:
    """What `flashllm batch --json` printed, in a process of its own; `CommandError` if it failed.

    With a limit the kernel holds it to that, and it gets `--memory` a little below.
    """
    command = [sys.executable, "-m", "flashllm", "batch", str(rows), str(rows) + ".answers"]
    command += [str(model), "--overwrite", "--json", "--ctx-size", str(case.context), *flags]
    if limit_bytes is None:
        return _printed(command)
    command += ["--memory", str(memory_ceiling_bytes(limit_bytes))]
    with limited(limit_bytes) as group:
        return _printed(group.command(command))


def have_memory(nbytes: int) -> None:
    """Touches as much memory and frees it, so that a run right after does not wait for it.

    A virtual machine may give what nobody has used for seconds back to its host: the first touch of
    a page afterwards took up to eighteen times as long.
    """
    core.Buffer(nbytes).array()[:: mmap.PAGESIZE] = 1


def measured_profile(model: Path, folder: Path) -> tuple[Path, Profile]:
    """A quick profile of the model's disk and of this machine, made now, and its file."""
    path = folder / "profile.json"
    ask("bench", "io", str(model), "--quick", "--json", "--profile", str(path))
    return path, load(path)


@dataclass(frozen=True, slots=True)
class BatchBound:
    """The least time of a batch: its products at the rate of chunks, and its reads in order."""

    product_seconds: float
    disk_seconds: float
    own_product_seconds: float
    """The same products, by the kernel that has less work with bundles: tiles multiply all tokens
    with all of a block, another one each token with its own at a rate of its own."""
    all_product_seconds: float
    """Products of all weights with all tokens; of experts, those that are chosen."""

    @property
    def seconds(self) -> float:
        """Both can go on at once."""
        return max(self.product_seconds, self.disk_seconds)

    @property
    def own_seconds(self) -> float:
        """The same with the products of own rows."""
        return max(self.own_product_seconds, self.disk_seconds)

    @property
    def all_seconds(self) -> float:
        """That of a program that leaves nothing out."""
        return max(self.all_product_seconds, self.disk_seconds)

    @classmethod
    def of(
        cls, spec: ModelSpec, stride: int, profile: Profile, report: dict[str, Any], used: float
    ) -> BatchBound:
        """Of a run, by its tokens and bytes; a token uses the share `used` of all bundles."""
        rates = profile.rates
        assert rates is not None
        resident, chunk = ResidentBytes.of(spec), rates.kernel_bytes_per_second
        new, prompts = report["completion_tokens"], report["prompt_tokens"]
        in_tiles = spec.bundles_per_layer * stride / chunk[CHUNK.format(spec.dtype)]
        # Behind keys and values of the last layer come the tokens that logits are asked for: each
        # answer's, the first of which is that of a prompt's last token.
        last = ResidentBytes.behind_last(spec, queries=True)
        behind, matrices = last.attention + last.gate, resident.attention + resident.gate
        tokens = new + prompts
        bundled = tokens * (spec.bundled_layers - 1) + new
        others = (tokens * (matrices - behind) + new * (behind + resident.head)) / chunk[
            CHUNK.format(spec.matrix_dtype)
        ]
        own = in_tiles * used
        if spec.experts is None and used < 1:
            own_bytes = spec.bundles_per_layer * stride * used
            own = min(in_tiles, own_bytes / chunk[OWN.format(spec.dtype)])
        in_order = profile.throughput(MAX_READ_BYTES, profile.best_threads(MAX_READ_BYTES))
        return cls(
            bundled * in_tiles * used + others,
            report["bytes_per_token"] * new / in_order,
            bundled * own + others,
            bundled * in_tiles * (1 if spec.experts is None else used) + others,
        )


def _printed(command: Sequence[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CommandError(said.removeprefix("flashllm: "), done.returncode)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
