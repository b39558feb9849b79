"""`flashllm plan --batch`: the best policy for many prompts, on this machine or another."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.cli.shared.flags import argument
from flashllm.cli.shared.output import Output
from flashllm.cli.shared.policy_flag import add_policy
from flashllm.errors import MemoryCeilingTooSmall, UsageError
from flashllm.settings.values import number_between, parse_positive

if TYPE_CHECKING:
    from flashllm.hardware.machine_profile import Profile
    from flashllm.planning.advisor import Scenario
    from flashllm.planning.batch.batch_plan import BatchPlan
    from flashllm.planning.batch.block_cost import CostedPolicy
    from flashllm.planning.batch.machine import TieredMachine
    from flashllm.planning.batch.policy import Workload
    from flashllm.planning.batch.store_cost import StoreModel
    from flashllm.planning.batch.tiered_cost import TieredModel
    from flashllm.spec import ModelSpec

THIS_MACHINE = "this"
DELEGATIONS = ("on", "off")
_FLAGS = {
    "machine": "--machine",
    "prompt_len": "--prompt-len",
    "new_tokens": "--new-tokens",
    "batch_policy": "--policy gbs,#gb,...",
    "compress": "--compress",
    "latency": "--latency",
    "pareto": "--pareto",
    "cost_model": "--cost-model",
    "delegation": "--delegation",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Sources:
    """How `plan` finds what the argument names; each is called if it is needed."""

    name: str
    """As it was typed."""
    spec: Callable[[], ModelSpec]
    scenario: Callable[[Profile | None], Scenario]
    profile: Callable[[], Profile | None]


def check_flags(arguments: argparse.Namespace) -> None:
    """`UsageError` for flags that do not go together."""
    given = [flag for name, flag in _FLAGS.items() if getattr(arguments, name)]
    if not arguments.batch:
        if given:
            raise UsageError(f"{given[0]} belongs to --batch: `flashllm plan MODEL --batch ...`")
        return
    missing = [
        _FLAGS[name] for name in ("prompt_len", "new_tokens") if not getattr(arguments, name)
    ]
    if missing:
        raise UsageError(
            f"--batch needs {' and '.join(missing)}: the tokens of a prompt and of its answer"
        )
    if arguments.settings.origin("policy") == "flag":
        raise UsageError(
            f"--policy {arguments.policy}: --batch takes a policy like 48,3,20,80,0,100,0,100"
            " (gbs, #gb, and percentages wg, wc, cg, cc, hg, hc), or none to search for the best"
        )


def plan_batch(arguments: argparse.Namespace, sources: Sources) -> int:
    """Prints what a policy takes, or the best one; exit code 71 if a search finds none."""
    from flashllm.cli.commands import plan_batch_report
    from flashllm.planning.batch.batch_plan import plan_policy, plan_search
    from flashllm.planning.batch.machine import TieredMachine
    from flashllm.planning.batch.policy import Workload

    work = Workload(arguments.prompt_len, arguments.new_tokens)
    model: TieredModel | StoreModel
    machine = _machine(arguments.machine or THIS_MACHINE)
    if isinstance(machine, TieredMachine):
        model, name = _tiered_model(arguments, sources, machine, work), machine.name
    else:
        model, name = _store_model(arguments, sources, machine, work), THIS_MACHINE
    if arguments.batch_policy is not None:
        made = plan_policy(model, arguments.batch_policy, arguments.latency)
    else:
        made = plan_search(model, arguments.latency)
    other = _other_delegation(model, made, arguments.latency)
    report = plan_batch_report.BatchReport(sources.name, name, model, made, other, arguments.pareto)
    output = Output()
    if arguments.json:
        output.json(report.to_json())
    else:
        output.write(report.text())
    return 0 if made.chosen is not None else MemoryCeilingTooSmall.exit_code


def _other_delegation(
    model: TieredModel | StoreModel, made: BatchPlan, latency_seconds: float | None
) -> CostedPolicy | None:
    """With attention computed at the other place: the same policy, or with 4 bits the best one.

    None where there is only one place, or nothing to compare with.
    """
    from flashllm.planning.batch.block_cost import CostedPolicy
    from flashllm.planning.batch.policy_search import search
    from flashllm.planning.batch.tiered_cost import TieredModel

    if made.chosen is None or not isinstance(model, TieredModel) or model.cost_model == "a3":
        return None
    other = dataclasses.replace(model, delegated=not model.delegated)
    if model.compress and made.found is not None:
        return search(other, latency_seconds).best
    policy = made.chosen.policy
    return CostedPolicy(policy, other.cost(policy.block))


def _machine(text: str) -> TieredMachine | Profile | None:
    """The machine of that name, or what a file describes; None for this one."""
    from flashllm.hardware.machine_profile import Profile
    from flashllm.planning.batch import machine as machines

    names = machines.known_machines()
    if text == THIS_MACHINE:
        return None
    if text in names:
        return machines.known_machine(text)
    path = Path(os.path.expanduser(text))
    if not os.path.isfile(path):
        known = ", ".join((THIS_MACHINE, *names))
        raise UsageError(
            f"--machine {text}: no machine of that name is known ({known}), and there is no such"
            " file"
        )
    values = machines.read_values(path)
    if "points" in values:
        return Profile.from_json(values, str(path))
    return machines.machine_from(values, str(path))


def _tiered_model(
    arguments: argparse.Namespace, sources: Sources, machine: TieredMachine, work: Workload
) -> TieredModel:
    from flashllm.planning.batch.shape import BatchShape
    from flashllm.planning.batch.tiered_cost import COST_MODELS, TieredModel

    spec = sources.spec()
    _check_positions(spec, work)
    if arguments.settings.origin("memory") == "flag":
        machine = dataclasses.replace(machine, dram_bytes=float(arguments.memory))
    delegation = arguments.delegation or ("off" if arguments.compress else "on")
    cost_model = arguments.cost_model or COST_MODELS[0]
    if cost_model == "a3" and delegation == "off":
        if arguments.delegation:
            raise UsageError("--cost-model a3: A.3 always has the CPU compute its attention")
        delegation = "on"
    return TieredModel(
        BatchShape.of(spec), machine, work, arguments.compress, delegation == "on", cost_model
    )


def _store_model(
    arguments: argparse.Namespace, sources: Sources, profile: Profile | None, work: Workload
) -> StoreModel:
    import shutil

    from flashllm.planning.batch.store_cost import StoreModel
    from flashllm.planning.model_facts import usual_ceiling
    from flashllm.system.filesystem import existing_parent

    for name in ("cost_model", "delegation"):
        if getattr(arguments, name):
            raise UsageError(
                f"{_FLAGS[name]} is for machines with a device: --machine t4-paper, or a FILE"
            )
    scenario = sources.scenario(profile or sources.profile())
    _check_positions(scenario.spec, work)
    place = Path(arguments.model)
    flash_bytes = shutil.disk_usage(existing_parent(place.absolute())).free
    if scenario.converted:
        flash_bytes += sum(file.stat().st_size for file in place.iterdir() if file.is_file())
    dram_bytes = arguments.memory or usual_ceiling(scenario.sizes.interpreter)
    return StoreModel(scenario, work, float(dram_bytes), float(flash_bytes), arguments.compress)


def _check_positions(spec: ModelSpec, work: Workload) -> None:
    tokens = work.prompt_tokens + work.new_tokens
    if tokens > spec.max_positions:
        raise UsageError(
            f"--prompt-len and --new-tokens are {tokens} tokens together; this model has"
            f" {spec.max_positions} positions"
        )


def add_batch_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `--batch`, and `--policy`, which is also the cache's."""
    from flashllm.planning.batch.tiered_cost import COST_MODELS

    group = parser.add_argument_group("many prompts (docs/batches.md)")
    group.add_argument(
        "--batch", action="store_true", help="plan for blocks of prompts that share each read"
    )
    group.add_argument(
        "--machine",
        metavar="NAME|FILE",
        help="t4-paper, a file that describes a machine, or a profile (default: this machine, as"
        " `flashllm bench io` measured it)",
    )
    group.add_argument(
        "--prompt-len", type=argument(parse_positive), metavar="S", help="tokens of a prompt"
    )
    group.add_argument(
        "--new-tokens", type=argument(parse_positive), metavar="N", help="tokens of an answer"
    )
    add_policy(
        group.add_argument,
        "with --batch gbs,#gb,wg,wc,cg,cc,hg,hc: rows computed together, how many such"
        " batches, and percentages of weights, keys and values, and activations on the device (g)"
        " and in DRAM (c) (default: searched for); without it, which neurons stay in memory, as"
        " for `run` [FLASHLLM_POLICY]",
    )
    group.add_argument(
        "--compress",
        action="store_true",
        help="4 bits, in groups of 64, for weights, keys and values (on this machine for keys and"
        " values; --dtype is for weights)",
    )
    group.add_argument(
        "--latency",
        type=argument(number_between(0, above=True)),
        metavar="SECONDS",
        help="the longest that a block may take",
    )
    group.add_argument(
        "--pareto", action="store_true", help="list latencies and the most throughput at each"
    )
    group.add_argument(
        "--cost-model",
        choices=COST_MODELS,
        metavar="NAME",
        help="how times are estimated of a machine with a device: overlapped (the default),"
        " serialised, sequential, or a3, the paper's to the letter",
    )
    group.add_argument(
        "--delegation",
        choices=DELEGATIONS,
        metavar="on|off",
        help="whether the CPU computes attention to what is not on the device (default: on, off"
        " with --compress)",
    )
