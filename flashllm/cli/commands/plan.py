"""`flashllm plan`: the memory and time of a model, before it is converted or opened."""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.cli.commands import plan_batch, plan_report
from flashllm.cli.commands.convert import add_reading, add_requantise
from flashllm.cli.commands.show import plan_rows
from flashllm.cli.shared import open_model
from flashllm.cli.shared.flags import argument
from flashllm.cli.shared.open_model import options_of
from flashllm.cli.shared.output import Output, remark, table
from flashllm.cli.shared.policy_flag import add_model_options
from flashllm.errors import MemoryCeilingTooSmall, UsageError
from flashllm.flash.file_names import MANIFEST_FILE
from flashllm.settings.values import parse_share

if TYPE_CHECKING:
    from flashllm.hardware.machine_profile import Profile
    from flashllm.planning.activation_stats import Activity
    from flashllm.planning.advisor import Scenario
    from flashllm.planning.plan import Plan
    from flashllm.spec import ModelSpec


def plan(arguments: argparse.Namespace) -> int:
    """Prints the plan for a checkpoint's config.json, a converted model, or a known one."""
    from flashllm.planning.advisor import advise, ceilings

    plan_batch.check_flags(arguments)
    named, arguments.model = arguments.model, _resolved(arguments)
    if arguments.batch:
        return plan_batch.plan_batch(
            arguments,
            plan_batch.Sources(
                name=named,
                spec=lambda: _spec(arguments),
                scenario=lambda profile: _scenario(arguments, profile),
                profile=lambda: _profile(arguments),
            ),
        )
    profile = _profile(arguments)
    scenario = _scenario(arguments, profile)
    made = _made(scenario)
    expected = scenario.expect(made)
    limits = ceilings(scenario, made)
    advice = advise(scenario, made, expected)
    output = Output()
    if arguments.json:
        output.json(plan_report.to_json(scenario, made, expected, limits, advice))
        return 0
    output.write(table(plan_report.weight_rows(scenario.spec, scenario.sizes.stride)))
    output.write("\n" + table(plan_rows(made)))
    if arguments.memory is None:
        output.write("\nThis is the smallest ceiling; --memory SIZE plans for another.\n")
    output.write("\n" + table(plan_report.expected_rows(scenario, made, expected, limits)))
    output.write("\n" + plan_report.verdict(scenario, made, expected, limits, advice))
    return 0


def _resolved(arguments: argparse.Namespace) -> str:
    """The directory that the argument means, or else the name of a known model.

    A converted model's name goes before a known one's, but for options that only checkpoints have.
    """
    from flashllm.convert import gguf_of
    from flashllm.convert.families.known_shapes import find_known, near_names
    from flashllm.library.names import as_path, refuse_foreign, usual_names

    text: str = arguments.model
    path = as_path(text)
    if not os.path.isfile(path / MANIFEST_FILE) and gguf_of(path) is not None:
        return str(path)
    if os.path.isdir(path):
        refuse_foreign(text, path)
        return str(path)
    names, is_known = usual_names(), find_known(text) is not None
    if is_known and any(value is not None for value in _reading(arguments)):
        return text
    if (named := names.find_named(text)) is not None:
        return str(open_model.model_directory(text) if named.path is None else named.path)
    if is_known:
        return text
    return str(names.find_checkpoint(text, whole=False, others=near_names(text)))


def _reading(arguments: argparse.Namespace) -> tuple[object, ...]:
    """Options that are for checkpoints."""
    return (
        arguments.act,
        arguments.fatrelu_threshold,
        arguments.dtype,
        arguments.resident_dtype,
    )


def _made(scenario: Scenario) -> Plan:
    """The plan; where it does not fit, an error with the encoding that does."""
    from flashllm.planning.advisor import narrower_encodings

    try:
        return scenario.plan()
    except MemoryCeilingTooSmall as error:
        advice = plan_report.encoding_advice(narrower_encodings(scenario))
        raise MemoryCeilingTooSmall(f"{error}{advice}", error.smallest_bytes) from error


def _profile(arguments: argparse.Namespace) -> Profile | None:
    """The profile asked for, or that of the device on which the model is or will be."""
    from flashllm.hardware.staleness import caution, find_profile

    if arguments.no_direct and arguments.profile is None:
        return None
    directory = Path(arguments.model)
    # Not by methods of Path, which raise if a name cannot be accessed.
    place = directory if os.path.exists(directory) else Path()
    file = None if arguments.profile is None else Path(arguments.profile)
    found = find_profile(place, file)
    if words := caution(place, file):
        remark(words)
    return found


def _scenario(arguments: argparse.Namespace, profile: Profile | None) -> Scenario:
    """The scenario for the model that the argument names."""
    if _is_converted(arguments):
        return _converted(arguments, profile)
    return _unconverted(arguments, profile)


def _spec(arguments: argparse.Namespace) -> ModelSpec:
    """The spec of that model, and nothing else of it."""
    from flashllm.flash.model_files import ModelFiles

    if not _is_converted(arguments):
        return _described(arguments)
    return ModelFiles(Path(arguments.model)).spec


def _is_converted(arguments: argparse.Namespace) -> bool:
    """Whether it is a converted model; `UsageError` if it is, and options are for others."""
    directory = Path(arguments.model)
    if not os.path.isfile(directory / MANIFEST_FILE):
        return False
    if any(value is not None for value in _reading(arguments)):
        raise UsageError(
            f"{directory} is converted already; --act, --fatrelu-threshold, --dtype and"
            " --resident-dtype are for checkpoints"
        )
    return True


def _unconverted(arguments: argparse.Namespace, profile: Profile | None) -> Scenario:
    """The scenario of a checkpoint, from its config.json alone, or of a known model."""
    from flashllm.convert import brings_tokenizer
    from flashllm.engine.loading import interpreter_bytes
    from flashllm.planning.advisor import Scenario
    from flashllm.planning.model_facts import check_selector
    from flashllm.planning.shape_estimate import sizes_of_shape, usual_selector

    spec = _described(arguments)
    select = arguments.select or usual_selector(spec)
    # A deciding gate replaces predictors; all other sparse models can have some.
    check_selector(select, spec, not spec.gated, Path(arguments.model))
    has_tokenizer = brings_tokenizer(Path(arguments.model))
    sizes = sizes_of_shape(spec, interpreter_bytes(), has_tokenizer=has_tokenizer)
    activity = _activity(arguments, spec, select, None)
    return Scenario(spec, sizes, activity, options_of(arguments).having(select=select), profile)


def _described(arguments: argparse.Namespace) -> ModelSpec:
    """The spec of a directory, or else of a known model."""
    from flashllm.convert import describe, gguf_of
    from flashllm.convert.families.known_shapes import describe_shape

    options = {
        "act": arguments.act,
        "fatrelu_threshold": arguments.fatrelu_threshold,
        "dtype": arguments.dtype,
        "resident_dtype": arguments.resident_dtype,
    }
    directory = Path(arguments.model)
    spec: ModelSpec
    if os.path.isdir(directory) or gguf_of(directory) is not None:
        spec = describe(directory, requantise=arguments.requantise, **options)
    else:
        spec = describe_shape(arguments.model, **options)
    return spec


def _converted(arguments: argparse.Namespace, profile: Profile | None) -> Scenario:
    from flashllm.engine.loading import scenario_of

    found = scenario_of(Path(arguments.model), options_of(arguments), profile)
    select = found.options.select
    assert select is not None
    activity = _activity(arguments, found.spec, select, found.activity)
    return dataclasses.replace(found, activity=activity)


def _activity(
    arguments: argparse.Namespace, spec: ModelSpec, select: str, recorded: Activity | None
) -> Activity | None:
    """The recorded activity, or an assumed one if there is none or `--active` is given."""
    from flashllm.planning.activation_stats import assumed

    if spec.experts is not None and arguments.active is not None:
        raise UsageError(
            f"--active: a token goes through {spec.experts.per_token} experts of each layer, always"
        )
    if select == "all" or not spec.selective:
        if arguments.active is not None:
            raise UsageError("--active: every neuron is used here, since the selector is all")
        return None
    if recorded is not None and arguments.active is None:
        return recorded
    return assumed(spec, select, arguments.active)


PLAN_EXAMPLES = """\
examples:
  flashllm plan ~/big --memory 8GiB
  flashllm plan ~/other --act relu              # a config that does not say what its weights are
  flashllm plan org/big                         # from the Hugging Face cache
  flashllm plan qwen3-8b --memory 16GiB         # one that is known: `flashllm models --all`
  flashllm plan qwen3-8b --batch --machine t4-paper --prompt-len 512 --new-tokens 32
"""


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `plan`."""
    parser.add_argument(
        "model",
        metavar="SRC|MODEL|NAME",
        help="a checkpoint (directory, of which config.json is enough, .gguf, or ORG/NAME of the"
        " Hugging Face cache), a converted model (name or directory), or a name from `flashllm"
        " models`",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument(
        "--active",
        type=argument(parse_share),
        metavar="SHARE",
        help="share of the neurons that a token uses, like 0.1 or 10%% (default: as recorded, or"
        " as usual for models of this kind)",
    )
    add_reading(parser)
    add_requantise(parser)
    plan_batch.add_batch_arguments(parser)
    add_model_options(parser)
