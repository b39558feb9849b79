"""Many prompts in the same memory: one by one, by accelerate, and in blocks.

    python -m benchmarks.batches MODEL --checkpoint DIR --memory SIZE [--cases 256+32,32+128]
        [--rows 64] [--few 8] [--block auto] [--kv-dtype f16] [--json FILE]

Each is a process under a memory limit of the kernel: `flashllm batch` row after row, and Hugging
Face transformers with accelerate, which leaves on disk what does not fit, in the largest batch that
ends under the limit, both on --few rows; and `flashllm batch` in blocks on --rows. Tokens are those
of the answers, over the time of prompts and answers, without that of opening. What few rows took is
also given for as many rows as the blocks had, marked "extrapolated".

The bound of a run is the larger of two times: its products at the rate of chunks of prompts, and
the bytes that it read at that of reads in order, both measured in the same run. A token is
multiplied with as many neurons as are recorded of the model, or else with as many as it selected
where rows went one by one. Chunks are multiplied in tiles, which decode a row once for all tokens;
"by own rows" is the share of a bound with the rate of the kernel that multiplies each token with
rows of its own, or with that of tiles of all rows where that takes less; "of all weights" that of
the bound of a program that multiplies all weights with all tokens.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.batch_runs import (
    BatchBound,
    Case,
    measured_profile,
    parse_case,
    random_prompts,
    run_batch,
    write_rows,
)
from benchmarks.memory_limit import limited
from benchmarks.own_command import ended, remark
from benchmarks.page_cache import drop_page_cache
from benchmarks.peers.contenders import INSTALL, environment, installed_versions, peers_python
from benchmarks.peers.files import model_files, read_checkpoint, read_model
from benchmarks.peers.worker import physical_cores
from benchmarks.results import markdown
from flashllm.bench.header import run_header
from flashllm.cli.shared.flags import argument
from flashllm.errors import FlashllmError
from flashllm.flash.manifest import Manifest, read_manifest
from flashllm.flash.store import Store
from flashllm.hardware.machine_profile import Profile
from flashllm.kv_cache.layout import kv_bytes
from flashllm.options import DEFAULT_KV_DTYPE, KV_DTYPES
from flashllm.planning.model_facts import choose_selector, recorded_activity
from flashllm.settings.values import parse_positive, parse_size
from flashllm.spec import ModelSpec
from flashllm.units import format_bytes

NAME = "batches"
ONE_BY_ONE, BLOCKS, ACCELERATE = "flashllm, one by one", "flashllm, in blocks", "accelerate"
SECONDS_MAX = 7200.0
_ACTIVATION_VECTORS = 8
"""Vectors of d_ffn a token that a peer's layer is taken to hold at once, in 32 bits."""


@dataclass(frozen=True, slots=True)
class Run:
    """One contender on rows of one case; `problem` says why it has no numbers."""

    contender: str
    how: str
    rows: int
    case: Case
    tokens: int = 0
    seconds: float = 0.0
    bytes_read: float | None = None
    bound_seconds: float | None = None
    own_bound_seconds: float | None = None
    """The bound with products of a token's own rows at the rate of their kernel."""
    all_bound_seconds: float | None = None
    """The bound of a program that multiplies all weights with all tokens."""
    used_share: float | None = None
    """Of all bundles, how many a token is multiplied with; None where nothing says it."""
    problem: str = ""

    @property
    def tokens_per_second(self) -> float:
        """Of answers."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_gigabyte(self) -> float | None:
        """Tokens of answers for 10^9 bytes from flash; None where none was read, or nobody says."""
        return self.tokens * 1e9 / self.bytes_read if self.bytes_read else None

    @property
    def share(self) -> float | None:
        """Of the bound."""
        return self._share(self.bound_seconds)

    @property
    def own_share(self) -> float | None:
        """Of the bound with products of own rows."""
        return self._share(self.own_bound_seconds)

    @property
    def all_share(self) -> float | None:
        """Of the bound of all weights with all tokens: above 1, no such program is as fast."""
        return self._share(self.all_bound_seconds)

    @property
    def shares(self) -> tuple[float | None, ...]:
        """All three, as they stand in the table."""
        return self.share, self.own_share, self.all_share

    def _share(self, bound_seconds: float | None) -> float | None:
        if bound_seconds is None or not self.seconds:
            return None
        return bound_seconds / self.seconds


def main() -> int:
    """Measure as the arguments ask; the last line of the output is JSON."""
    options = parse()
    spec = read_manifest(options.model).spec
    checkpoint = None
    if options.checkpoint is not None:
        checkpoint = read_checkpoint(options.checkpoint)
        read_model(options.model, checkpoint)
    header = run_header(options.model, {key: str(value) for key, value in vars(options).items()})
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="batches-", dir=options.folder) as folder:
        path, profile = measured_profile(options.model, Path(folder))
        for case in options.cases:
            for one in measured(options, spec, case, Path(folder), path, profile):
                runs.append(one)
                remark(NAME, line_of(one))
                if options.json is not None:
                    options.json.write_text(json.dumps(to_json(header, runs), indent=1) + "\n")
    print(table(runs, options.rows))
    print(json.dumps(to_json(header, runs)))
    return 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, count = parser.add_argument, argument(parse_positive)
    add("model", type=Path, metavar="MODEL", help="a converted model's directory")
    add("--checkpoint", type=Path, metavar="DIR", help="what it was made from, for accelerate")
    add("--memory", type=argument(parse_size), required=True, metavar="SIZE", help="the limit")
    add("--cases", type=argument(_cases), default=_cases("256+32,32+128"), metavar="S+N,...")
    add("--rows", type=count, default=64, metavar="N", help="of the blocks (64)")
    add("--few", type=count, default=8, metavar="N", help="of the others (8)")
    add("--block", default="auto", metavar="N|auto", help="rows at once (auto)")
    add("--policy", metavar="POLICY", help="a policy of a block, or auto, instead of --block")
    add("--kv-dtype", choices=KV_DTYPES, default=DEFAULT_KV_DTYPE,
        help=f"of our keys and values, one by one and in blocks ({DEFAULT_KV_DTYPE})")  # fmt: skip
    add("--threads", type=count, metavar="N", help="of accelerate (cores)")
    add("--folder", type=Path, metavar="DIR", help="where rows and answers are written")
    add("--json", type=Path, metavar="FILE", help="keep the report there after each run")
    return parser.parse_args(arguments)


def _cases(text: str) -> list[Case]:
    return [parse_case(part) for part in text.split(",")]


def measured(
    options: argparse.Namespace,
    spec: ModelSpec,
    case: Case,
    folder: Path,
    profile_file: Path,
    profile: Profile,
) -> Iterator[Run]:
    """All contenders on one case."""
    manifest = read_manifest(options.model)
    prompts = random_prompts(spec.vocab_size, max(options.rows, options.few), case)
    few = write_rows(folder / "few.jsonl", prompts[: options.few], case.new_tokens)
    many = write_rows(folder / "many.jsonl", prompts[: options.rows], case.new_tokens)
    flags = ["--profile", str(profile_file), "-n", str(case.new_tokens)]
    flags += ["--kv-dtype", options.kv_dtype]
    used = recorded_share(options.model)
    alone = ours(options, manifest, case, few, ["--block", "1", *flags], ONE_BY_ONE, profile, used)
    yield alone
    if options.checkpoint is not None:
        yield accelerate(options, spec, case, prompts[: options.few], folder)
    how = ["--policy", options.policy] if options.policy else ["--block", options.block]
    used = alone.used_share if used is None else used
    yield ours(options, manifest, case, many, [*how, *flags], BLOCKS, profile, used)


def ours(
    options: argparse.Namespace,
    manifest: Manifest,
    case: Case,
    rows: Path,
    flags: list[str],
    name: str,
    profile: Profile,
    used: float | None,
) -> Run:
    """A run of `flashllm batch`, cold: the page cache is dropped before.

    A token is multiplied with the share `used` of all bundles. Where that is unknown, a run one by
    one says it; a step of many rows counts what several need once, so that it has no bound.
    """
    drop_page_cache(model_files(options.model, manifest))
    count, how = len(rows.read_text("utf-8").splitlines()), " ".join(flags[:2])
    try:
        report = run_batch(options.model, rows, case, flags, options.memory)
    except FlashllmError as error:
        return Run(name, how, count, case, problem=str(error))
    if used is None and name == ONE_BY_ONE:
        used = selected_share(manifest.spec, report["decode"])
    bounds: tuple[float | None, float | None, float | None] = None, None, None
    if used is not None:
        bound = BatchBound.of(manifest.spec, stride_of(options.model), profile, report, used)
        bounds = bound.seconds, bound.own_seconds, bound.all_seconds
    tokens = report["completion_tokens"]
    return Run(
        name, how, count, case, tokens, report["seconds"], report["bytes_per_token"] * tokens,
        *bounds, used,
    )  # fmt: skip


def stride_of(model: Path) -> int:
    """Bytes of a bundle on flash."""
    with Store(model) as store:
        return store.header.stride


def recorded_share(model: Path) -> float | None:
    """Share of all bundles that a token is multiplied with, as it was recorded of the model.

    None where nothing is recorded of a model whose tokens leave out neurons.
    """
    with Store(model) as store:
        spec, select = store.spec, choose_selector(store, None)
        activity = recorded_activity(store, select)
    if activity is not None:
        return activity.used_share(spec.bundles_per_layer)
    return spec.multiplied_share if select == "all" or spec.experts else None


def selected_share(spec: ModelSpec, decode: Mapping[str, Any]) -> float | None:
    """The same by what tokens selected that were decoded one at a time; None where none was."""
    bundles = decode["tokens"] * spec.bundled_layers * spec.bundles_per_layer
    return (decode["hits"] + decode["misses"]) / bundles if bundles else None


def accelerate(
    options: argparse.Namespace,
    spec: ModelSpec,
    case: Case,
    prompts: list[list[int]],
    folder: Path,
) -> Run:
    """The largest batch that ends under the limit, of all rows at once, half of them, ... one."""
    python = peers_python()
    versions = installed_versions(python)
    if None in (versions["accelerate"], versions["transformers"]):
        return Run(ACCELERATE, "", 0, case, problem=f"not installed; run `{INSTALL}`")
    file = folder / "prompts.json"
    file.write_text(json.dumps(prompts))
    batch, problem = len(prompts), ""
    while batch:
        command = [
            str(python), "-m", "benchmarks.peers.accelerate_batch", str(options.checkpoint),
            "--prompts", str(file), "--new-tokens", str(case.new_tokens), "--batch", str(batch),
            "--limit-bytes", str(options.memory), "--threads",
            str(options.threads or physical_cores()), "--reserve-bytes",
            str(reserve_bytes(spec, case, batch)),
        ]  # fmt: skip
        drop_page_cache(sorted(options.checkpoint.glob("*.safetensors")))
        with limited(options.memory) as group:
            try:
                done = subprocess.run(
                    group.command(command), capture_output=True, text=True, check=False,
                    env=environment(), timeout=SECONDS_MAX,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return Run(
                    ACCELERATE, f"batch {batch}", len(prompts), case,
                    problem=f"not done after {SECONDS_MAX:.0f} s",
                )  # fmt: skip
        if not done.returncode:
            found = json.loads(done.stdout.splitlines()[-1])
            how = (
                f"batch {batch}, {found['facts']['modules_on_disk']} of"
                f" {found['facts']['modules']} modules on disk"
            )
            return Run(
                ACCELERATE, how, len(prompts), case, found["completion_tokens"], found["seconds"],
                found["bytes_read"],
            )  # fmt: skip
        problem = (done.stderr.strip().splitlines() or ["out of memory under the limit"])[-1]
        remark(NAME, f"accelerate, batch {batch}: {problem}")
        batch //= 2
    return Run(ACCELERATE, "batch 1", len(prompts), case, problem=problem)


def reserve_bytes(spec: ModelSpec, case: Case, batch: int) -> int:
    """Memory that the keys, values and activations of a peer's batch take."""
    kv = batch * kv_bytes(spec, case.context, "f16")
    return kv + 4 * _ACTIVATION_VECTORS * batch * case.prompt_tokens * spec.d_ffn // 2


def line_of(run: Run) -> str:
    """A line about one run."""
    where = f"{run.case.prompt_tokens} + {run.case.new_tokens}, {run.contender} ({run.how})"
    if run.problem:
        return f"{where}: {run.problem}"
    return f"{where}: {run.tokens_per_second:.3g} tokens a second, {run.seconds:.1f} s"


def table(runs: list[Run], rows: int) -> str:
    """All runs, and how many times as fast the blocks are."""
    head = [
        "tokens", "", "how", "rows", "tokens/s", f"s for {rows} rows", "read a token",
        "tokens/GB", "of the bound", "by own rows", "of all weights", "blocks are x",
    ]  # fmt: skip
    lines = [head]
    blocks = {one.case: one for one in runs if one.contender == BLOCKS and not one.problem}
    for one in runs:
        case = f"{one.case.prompt_tokens} + {one.case.new_tokens}"
        if one.problem:
            lines.append([case, one.contender, one.how, str(one.rows), one.problem, *[""] * 7])
            continue
        best, per = blocks.get(one.case), one.tokens_per_gigabyte
        ratios = ""
        if best is not None and best is not one:
            ratios = f"{best.tokens_per_second / one.tokens_per_second:.2f} in tokens/s"
            if per and best.tokens_per_gigabyte:
                ratios += f", {best.tokens_per_gigabyte / per:.1f} in tokens/GB"
        whole = f"{one.seconds * rows / one.rows:.0f}"
        read = None if one.bytes_read is None else one.bytes_read / max(one.tokens, 1)
        lines.append([
            case, one.contender, one.how, str(one.rows), f"{one.tokens_per_second:.3g}",
            whole if one.rows == rows else f"{whole} (extrapolated)",
            "unknown" if read is None else format_bytes(read),
            "" if per is None else f"{per:.3g}",
            *("" if share is None else f"{share:.2f}" for share in one.shares),
            ratios,
        ])  # fmt: skip
    return markdown(lines)


def to_json(header: dict[str, Any], runs: list[Run]) -> dict[str, Any]:
    """Plain values, derived ones included."""
    each = [
        asdict(one)
        | {
            "tokens_per_second": one.tokens_per_second,
            "tokens_per_gigabyte": one.tokens_per_gigabyte,
            "share_of_bound": one.share,
            "own_share_of_bound": one.own_share,
            "all_weights_share": one.all_share,
        }
        for one in runs
    ]
    return {"header": header, "runs": each}


if __name__ == "__main__":
    raise SystemExit(ended(NAME, main))
