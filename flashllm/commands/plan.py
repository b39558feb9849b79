"""`flashllm plan`: what a model will take, before it is converted or opened."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashllm.commands.info import plan_rows
from flashllm.commands.output import Output, format_bytes, table
from flashllm.errors import ModelNotFound, UsageError

if TYPE_CHECKING:
    from flashllm.flash.plan import Plan, Sizes
    from flashllm.spec import ModelSpec


def plan(arguments: argparse.Namespace) -> int:
    """Prints the plan for a checkpoint, from its config.json alone, or for a converted model."""
    from flashllm.flash import estimate
    from flashllm.flash.plan import make_plan

    spec, sizes, select = _described(arguments)
    made = make_plan(
        spec,
        sizes,
        arguments.memory,
        select=select,
        window=arguments.window,
        io_threads=arguments.io_threads,
        context=arguments.ctx_size,
    )
    output = Output()
    if arguments.json:
        output.json(estimate.to_json(spec, made, sizes.stride))
        return 0
    output.write(table(_weight_rows(spec, sizes.stride)))
    output.write("\n" + table(plan_rows(made)))
    if arguments.memory is None:
        output.write("\nThis is the smallest ceiling; --memory SIZE plans for another.\n")
    output.write("\n" + _verdict(spec, made, sizes) + "\n")
    return 0


def _described(arguments: argparse.Namespace) -> tuple[ModelSpec, Sizes, str]:
    """Shape, sizes and selector of what the argument names."""
    from flashllm.convert import describe
    from flashllm.flash.estimate import sizes_of_shape, usual_selector
    from flashllm.flash.manifest import MANIFEST_FILE
    from flashllm.loading import (
        check_selector,
        choose_selector,
        interpreter_bytes,
        model_sizes,
    )

    directory = Path(arguments.model)
    if not directory.is_dir():
        raise ModelNotFound(
            f"{directory}: no such directory; give a checkpoint's, or a converted model's"
        )
    if not (directory / MANIFEST_FILE).is_file():
        spec: ModelSpec = describe(
            directory,
            act=arguments.act,
            fatrelu_threshold=arguments.fatrelu_threshold,
            dtype=arguments.dtype,
        )
        select = arguments.select or usual_selector(spec)
        # A gate that decides takes the place of predictors; all others can be given some.
        check_selector(select, spec, not spec.gated, directory)
        return spec, sizes_of_shape(spec, interpreter_bytes()), select
    from flashllm.flash.store import Store

    if (arguments.act, arguments.fatrelu_threshold, arguments.dtype) != (None, None, None):
        raise UsageError(
            f"{directory} is converted already; --act, --fatrelu-threshold and --dtype are for"
            " checkpoints"
        )
    with Store(directory) as store:
        select = choose_selector(store, arguments.select)
        return store.spec, model_sizes(store, select), select


def _weight_rows(spec: ModelSpec, stride: int) -> list[tuple[str, Any]]:
    from flashllm.flash.estimate import Weights

    weights = Weights.of(spec)

    def part(nbytes: int) -> str:
        return f"{format_bytes(nbytes)}, {nbytes / weights.total:.1%}"

    padding = weights.padding / max(weights.ffn, 1)
    rows = [
        ("weights", f"{format_bytes(weights.total)} in {spec.dtype}"),
        ("  embeddings", part(weights.embeddings)),
        ("  attention", part(weights.attention)),
        ("  gates", part(weights.gate)),
        ("  feed-forward, on flash", f"{part(weights.ffn)}, and {padding:.1%} more for padding"),
        ("neurons", f"{spec.n_layers} x {spec.d_ffn}, {format_bytes(stride)} each on flash"),
    ]
    return [row for row in rows if row[0] != "  gates" or weights.gate]


def _verdict(spec: ModelSpec, made: Plan, sizes: Sizes) -> str:
    """What a token will read, in sentences."""
    from flashllm.flash.estimate import traffic

    moved = traffic(spec, made, sizes.stride)
    if made.select != "all":
        named = "its predictors name (lossy)" if made.select == "predicted" else "are not zero"
        return (
            f"A token reads the neurons that {named} and that the\nwindow does not hold:"
            f" {format_bytes(moved.per_percent_bytes)} for each 1 % of them. How many there are"
            "\ndepends on text and model; `flashllm eval` counts them."
        )
    rest = moved.layer_bytes - moved.pinned_bytes
    why = f" since {spec.activation} is never zero" if not spec.sparse else ""
    if not rest:
        return f"A token needs every neuron{why};\nunder this ceiling all of them stay in memory."
    return (
        f"A token needs every neuron{why},\nand reads {format_bytes(rest)} of them from flash"
        f" ({format_bytes(moved.pinned_bytes)} stay in memory):\n{rest / 1e9:.1f} s a token on a"
        " disk that reads 1 GB/s."
    )
