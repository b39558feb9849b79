"""Our own cost model of blocks against runs: seconds of ten policies, predicted and measured.

    python -m benchmarks.batch_policies MODEL --memory SIZE [--case 64+16] [--rounds 3]
        [--json FILE]

The pieces are measured in the same run: a quick profile of the disk, the memory and the kernels,
and the overheads of a step, which short batches give: of one row, of 4, of 16, and of 16 with most
keys and values on flash. Then each policy is planned, run by `flashllm batch --policy` on one block
of random rows, --rounds times by turns, and its median compared with what was predicted.
Opening the model is in neither, nor is memory that the machine does not have at hand: as much is
touched before each run.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.batch_runs import (
    Case,
    have_memory,
    measured_profile,
    parse_case,
    random_prompts,
    run_batch,
    write_rows,
)
from benchmarks.own_command import ended, remark
from benchmarks.results import markdown
from flashllm.bench.header import run_header
from flashllm.cli.shared.flags import argument
from flashllm.engine.loading import scenario_of
from flashllm.errors import FlashllmError
from flashllm.hardware.machine_profile import Profile
from flashllm.options import ModelOptions
from flashllm.planning.activation_stats import assumed
from flashllm.planning.advisor import Scenario
from flashllm.planning.batch.applied_policy import apply_policy, realised_policy
from flashllm.planning.batch.policy import BatchPolicy, Workload, parse_batch_policy
from flashllm.planning.batch.store_cost import BlockOverheads, StoreModel
from flashllm.settings.values import parse_positive, parse_size

NAME = "batch_policies"
POLICIES = (
    ("1,1,0,100,0,100,0,100", ()),
    ("4,1,0,100,0,100,0,100", ()),
    ("16,1,0,100,0,100,0,100", ()),
    ("16,4,0,100,0,100,0,100", ()),
    ("8,1,0,50,0,100,0,100", ()),
    ("32,1,0,50,0,100,0,100", ()),
    ("16,1,0,0,0,100,0,100", ()),
    ("16,1,0,100,0,25,0,100", ()),
    ("16,1,0,50,0,50,0,100", ("--kv-dtype", "int8")),
    ("32,1,0,100,0,100,0,100", ("--schedule", "zigzag", "--kv-dtype", "f32")),
)
"""Sizes of blocks, shares of weights and of keys and values, encodings of these, and a schedule."""


FITTED_KV = 40
"""Percent of keys and values in DRAM where the overhead of those on flash is fitted: with less than
the last pages of all rows these would come and go with each token."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One policy: what was predicted and what was measured, of one block."""

    policy: str
    flags: tuple[str, ...]
    rows: int
    predicted_seconds: float = 0.0
    measured_seconds: float = 0.0
    predicted_prompts_seconds: float = 0.0
    measured_prompts_seconds: float = 0.0
    """Of these, until each row has its first token."""
    tokens: int = 0
    spread: float = 0.0
    """The longest run over the shortest."""
    parts: dict[str, float] = dataclasses.field(default_factory=dict)
    problem: str = ""

    @property
    def error(self) -> float:
        """Of the prediction: 0.2 is 20 % too long."""
        return self.predicted_seconds / self.measured_seconds - 1 if self.measured_seconds else 0.0


def main() -> int:
    """Measure as the arguments ask; the last line of the output is JSON."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="a converted model's directory")
    add("--memory", type=argument(parse_size), required=True, metavar="SIZE", help="the ceiling")
    add(
        "--case",
        type=argument(parse_case),
        default=parse_case("64+16"),
        metavar="S+N",
        help="(64+16)",
    )
    add("--rounds", type=argument(parse_positive), default=3, metavar="N", help="(3)")
    add("--json", type=Path, metavar="FILE", help="keep the report there")
    options = parser.parse_args()
    header = run_header(options.model, {key: str(value) for key, value in vars(options).items()})
    with tempfile.TemporaryDirectory(prefix="batch-policies-") as folder:
        remark(NAME, "measures rates and overheads of a step first, which takes minutes")
        path, profile = measured_profile(options.model, Path(folder))
        overheads = fitted(options, Path(folder), path, profile)
        remark(NAME, f"overheads: {overheads}")
        runs = compared(options, Path(folder), path, profile, overheads)
    worst = max((abs(one.error) for one in runs if not one.problem), default=0.0)
    report = {
        "header": header,
        "overheads": asdict(overheads),
        "worst_error": worst,
        "policies": [asdict(one) | {"error": one.error} for one in runs],
    }
    print(table(runs))
    print(f"the largest error: {worst:.0%}")
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))
    return 0


def compared(
    options: argparse.Namespace,
    folder: Path,
    profile_file: Path,
    profile: Profile,
    overheads: BlockOverheads,
) -> list[Compared]:
    """All policies, each predicted and then run, by turns."""
    found = [predicted(options, profile, overheads, *policy) for policy in POLICIES]
    reports: dict[str, list[dict[str, Any]]] = {one.policy: [] for one in found}
    for number in range(options.rounds):
        for at, one in enumerate(found):
            if one.problem:
                continue
            try:
                report = measured(
                    options, folder, profile_file, parse_batch_policy(one.policy), one.flags, number
                )
            except FlashllmError as error:
                found[at] = dataclasses.replace(one, problem=str(error))
                continue
            reports[one.policy].append(report)
            remark(NAME, f"{one.policy}: {report['seconds']:.3f} s ({one.predicted_seconds:.3f})")
    return [with_runs(one, reports[one.policy]) for one in found]


def predicted(
    options: argparse.Namespace,
    profile: Profile,
    overheads: BlockOverheads,
    text: str,
    flags: tuple[str, ...],
) -> Compared:
    """What the cost model says of a policy, which has still to be run."""
    policy = parse_batch_policy(text)
    facts = facts_of(options, profile, options.case, flags)
    try:
        made = apply_policy(policy, facts)
    except FlashllmError as error:
        return Compared(text, flags, policy.block.rows, problem=str(error))
    real = realised_policy(made.plan, facts.spec)
    cost = store_model(facts, options.case, overheads).cost(real.block)
    return Compared(
        text,
        flags,
        real.block.rows,
        cost.seconds(real.placement),
        predicted_prompts_seconds=cost.prefill.seconds(real.placement),
        parts={
            f"{name}: {part}": seconds
            for name, phase in (("prompts", cost.prefill), ("answers", cost.decode))
            for part, seconds in phase.breakdown(real.placement).items()
        },
    )


def with_runs(one: Compared, reports: Sequence[dict[str, Any]]) -> Compared:
    """A policy with the medians of its runs, of which there are none where one failed."""
    if one.problem:
        return one
    seconds = [report["seconds"] for report in reports]
    return dataclasses.replace(
        one,
        measured_seconds=statistics.median(seconds),
        measured_prompts_seconds=statistics.median(
            report["prefill"]["wall_ns"] / 1e9 for report in reports
        ),
        tokens=reports[-1]["completion_tokens"],
        spread=max(seconds) / min(seconds),
    )


def facts_of(
    options: argparse.Namespace, profile: Profile, case: Case, flags: tuple[str, ...] = ()
) -> Scenario:
    """What the policies of a case are planned by."""
    kv_dtype: Any = flags[flags.index("--kv-dtype") + 1] if "--kv-dtype" in flags else None
    opened = ModelOptions(memory=options.memory, context=case.context, kv_dtype=kv_dtype)
    facts = scenario_of(options.model, opened, profile)
    select = facts.options.select
    if facts.activity is None and select not in (None, "all") and facts.spec.selective:
        assert select is not None
        facts = dataclasses.replace(facts, activity=assumed(facts.spec, select, None))
    return facts


def store_model(facts: Scenario, case: Case, overheads: BlockOverheads) -> StoreModel:
    """The cost model of a case."""
    memory = facts.options.memory
    assert memory is not None
    work = Workload(case.prompt_tokens, case.new_tokens)
    return StoreModel(
        facts, work, float(memory), 1e15, context_tokens=case.context, overheads=overheads,
        begins_empty=True,
    )  # fmt: skip


def measured(
    options: argparse.Namespace,
    folder: Path,
    profile_file: Path,
    policy: BatchPolicy,
    flags: tuple[str, ...],
    seed: int,
) -> dict[str, Any]:
    """One block of a policy."""
    case, rows = options.case, policy.block.rows
    with_vocabulary = facts_vocabulary(options.model)
    prompts = random_prompts(with_vocabulary, rows, case, seed)
    file = write_rows(folder / "rows.jsonl", prompts, case.new_tokens)
    command = ["--policy", str(policy), "--memory", str(options.memory)]
    command += ["--profile", str(profile_file), "-n", str(case.new_tokens), *flags]
    have_memory(options.memory)
    return run_batch(options.model, file, case, command)


def facts_vocabulary(model: Path) -> int:
    """Token ids of the model."""
    from flashllm.flash.manifest import read_manifest

    return read_manifest(model).spec.vocab_size


def fitted(
    options: argparse.Namespace, folder: Path, profile_file: Path, profile: Profile
) -> BlockOverheads:
    """Overheads of this machine: what runs of 1, 4 and 16 rows in DRAM take beyond the rates."""
    none = BlockOverheads(0.0, 0.0, 0.0)
    facts = facts_of(options, profile, options.case)
    one, few, many, flash = (
        f"{rows},1,0,100,0,{kv},0,100"
        for rows, kv in ((1, 100), (4, 100), (16, 100), (16, FITTED_KV))
    )
    # Does not count: a machine's first run of these sizes waits for memory.
    measured(options, folder, profile_file, parse_batch_policy(many), (), 99)
    answers: dict[str, list[float]] = {text: [] for text in (one, few, many, flash)}
    prompts: dict[str, list[float]] = {text: [] for text in answers}
    for number, text in itertools.product(range(options.rounds), answers):
        policy = parse_batch_policy(text)
        cost = store_model(facts, options.case, none).cost(policy.block)
        report = measured(options, folder, profile_file, policy, (), 100 + number)
        decode, prefill = (report[phase]["wall_ns"] / 1e9 for phase in ("decode", "prefill"))
        answers[text].append(decode - cost.decode.seconds(policy.placement))
        prompts[text].append(prefill - cost.prefill.seconds(policy.placement))
    beyond = {
        text: (statistics.median(answers[text]), statistics.median(prompts[text]))
        for text in answers
    }
    steps = max(options.case.new_tokens - 1, 1) * facts.spec.n_layers
    row_layer = max((beyond[many][0] - beyond[few][0]) / 12 / steps, 0.0)
    step_layer = max(beyond[one][0] / steps - row_layer, 0.0)
    panel_layer = max(beyond[few][0] / steps - 4 * row_layer - step_layer, 0.0)
    row = max((beyond[many][1] - beyond[one][1]) / 15, 0.0)
    start = max(beyond[one][1] - row, 0.0)
    on_flash = 16 * (1 - FITTED_KV / 100)
    flash_row_layer = max((beyond[flash][0] - beyond[many][0]) / on_flash / steps, 0.0)
    return BlockOverheads(step_layer, row_layer, row, flash_row_layer, panel_layer, start)


def table(runs: list[Compared]) -> str:
    """All policies."""
    rows = [[
        "policy", "", "rows", "predicted, s", "measured, s", "of these prompts",
        "longest / shortest", "tokens/s", "error",
    ]]  # fmt: skip
    for one in runs:
        if one.problem:
            rows.append(
                [one.policy, " ".join(one.flags), str(one.rows), "", one.problem, *[""] * 4]
            )
            continue
        rows.append([
            one.policy, " ".join(one.flags), str(one.rows), f"{one.predicted_seconds:.3f}",
            f"{one.measured_seconds:.3f}",
            f"{one.predicted_prompts_seconds:.3f}, {one.measured_prompts_seconds:.3f}",
            f"{one.spread:.2f}",
            f"{one.tokens / one.measured_seconds:.4g}", f"{one.error:+.0%}",
        ])  # fmt: skip
    return markdown(rows)


if __name__ == "__main__":
    raise SystemExit(ended(NAME, main))
