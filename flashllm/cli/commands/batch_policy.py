"""`flashllm batch --policy gbs,#gb,wg,wc,cg,cc,hg,hc|auto`: a block as it is asked for or found."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import multiprocessing
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from flashllm.cli.shared import open_model
from flashllm.cli.shared.interrupt import RunningModel
from flashllm.cli.shared.output import remark
from flashllm.cli.shared.policy_flag import AUTO
from flashllm.errors import ProfileError, UsageError
from flashllm.units import format_number

if TYPE_CHECKING:
    from flashllm.batch.block_search import Trial
    from flashllm.engine.local import Model
    from flashllm.planning.advisor import Scenario
    from flashllm.planning.batch.applied_policy import AppliedPolicy
    from flashllm.planning.batch.policy import BatchPolicy
    from flashllm.planning.plan import Plan
    from flashllm.spec import ModelSpec

HELP = (
    "which neurons or experts stay in memory; or the policy of a block, gbs,#gb,wg,wc,cg,cc,hg,hc:"
    " rows computed together, how many such batches, and percentages of weights, keys and values,"
    " and activations on the device (g, of which there is none) and in DRAM (c), the rest on flash;"
    " or auto, which searches for one and tries it [FLASHLLM_POLICY]"
)


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """What was asked for, and what the model that was opened has."""

    requested: BatchPolicy
    realised: BatchPolicy

    @classmethod
    def of(cls, requested: BatchPolicy, plan: Plan, spec: ModelSpec) -> PolicyReport:
        """By the plan of the model."""
        from flashllm.planning.batch.applied_policy import realised_policy

        return cls(requested, realised_policy(plan, spec))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"requested": self.requested.to_json(), "realised": self.realised.to_json()}

    def rows(self) -> list[tuple[str, str]]:
        """Names and texts for people."""
        return [("policy", f"{self.requested} asked for, {self.realised} realised")]


def check_policy(arguments: argparse.Namespace) -> None:
    """`UsageError` for flags that do not go with a policy of a block; sets `block` if needed."""
    if arguments.batch_policy is None:
        arguments.block = 1 if arguments.block is None else arguments.block
        return
    if arguments.block is not None:
        raise UsageError("--policy says how many rows there are at once; leave out --block")
    arguments.block = 1
    for name in ("ray", "stages"):
        if getattr(arguments, name) is not None:
            raise UsageError(f"--policy of a block is of one process; leave it out, or --{name}")


def scenario_of(arguments: argparse.Namespace, directory: Path) -> Scenario:
    """What the model is planned by, under the ceiling asked for or the usual one."""
    from flashllm.engine import loading
    from flashllm.hardware.staleness import profile_for
    from flashllm.planning.activation_stats import assumed
    from flashllm.planning.model_facts import usual_ceiling

    options = open_model.options_of(arguments)
    found = loading.scenario_of(directory, options, profile_for(directory, options))
    if options.memory is None:
        found = found.having(memory=usual_ceiling(found.sizes.interpreter))
    select = found.options.select
    assert select is not None
    if found.activity is None and select != "all" and found.spec.selective:
        found = dataclasses.replace(found, activity=assumed(found.spec, select, None))
    return found


def applied(arguments: argparse.Namespace, directory: Path, policy: BatchPolicy) -> AppliedPolicy:
    """The options that the model is opened with; errors as those of `apply_policy`."""
    from flashllm.planning.batch.applied_policy import apply_policy

    return apply_policy(policy, scenario_of(arguments, directory))


def found_policy(
    arguments: argparse.Namespace,
    directory: Path,
    prompts: Sequence[Sequence[int]],
    rows: int,
    running: RunningModel,
) -> BatchPolicy:
    """The policy that a search finds for such prompts, and the fastest near it in short runs."""
    from flashllm.batch.policy_trials import find_policy, near_policies
    from flashllm.planning.batch.applied_policy import apply_policy
    from flashllm.planning.batch.policy import Workload

    scenario = scenario_of(arguments, directory)
    work = Workload(max(round(fmean(map(len, prompts))), 1) if prompts else 1, arguments.max_tokens)
    free_bytes = float(shutil.disk_usage(directory).free)
    try:
        # In a process of its own: what the solver's libraries take would be missing from the
        # ceiling.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            candidates = pool.apply(near_policies, (scenario, work, rows, free_bytes))
    except ProfileError as error:
        raise UsageError(f"--policy {AUTO}: {error}") from error

    @contextlib.contextmanager
    def opened(policy: BatchPolicy) -> Iterator[Model]:
        made = apply_policy(policy, scenario)
        contexts = policy.block.rows
        with open_model.open_engine(directory, arguments, contexts, made.options) as model:
            running.model = model
            try:
                yield model
            finally:
                running.model = None

    def tell(policy: BatchPolicy, trial: Trial) -> None:
        speed = f"{format_number(trial.tokens_per_second)} tokens a second"
        remark(f"--policy {policy}: {trial.problem or speed}")

    return find_policy(
        opened, candidates, prompts, work.new_tokens, lambda: running.is_stopped, tell
    )
