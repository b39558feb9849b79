"""`flashllm show` (also `info`) and `flashllm verify`: describe a converted model, and check it."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashllm.cli.shared import open_model
from flashllm.cli.shared.flags import add_model, add_options
from flashllm.cli.shared.output import Output, remark, table
from flashllm.errors import ModelError
from flashllm.flash.file_names import MANIFEST_FILE
from flashllm.flash.manifest import format_requantised
from flashllm.settings.options import MODEL_OPTIONS
from flashllm.telemetry.formatting import format_shares
from flashllm.units import format_bytes, format_ceiling

if TYPE_CHECKING:
    from flashllm.convert import Problem
    from flashllm.library.models import FoundModel
    from flashllm.planning.device_plan import DevicePlan
    from flashllm.planning.model_info import ModelInfo
    from flashllm.planning.plan import Plan
    from flashllm.spec import ModelSpec

SELECTOR_LABELS = {
    "predicted": "predicted (lossy: may miss active neurons)",
    "gate": "gate (exact)",
    "router": "router of experts (exact)",
    "all": "all (exact)",
    "oracle": "oracle (exact)",
}
EXIT_BAD_DATA = ModelError.exit_code


def show(arguments: argparse.Namespace) -> int:
    """Prints what a model is, where it lies, and what it needs; with `--plan`, how it would run."""
    from flashllm.flash.model_files import ModelFiles
    from flashllm.library.library import usual_library
    from flashllm.library.scan import examine
    from flashllm.planning.model_info import describe
    from flashllm.tokenizer.tokenizer import load_tokenizer

    directory = open_model.model_directory(arguments.model)
    described = describe(ModelFiles(directory), load_tokenizer(directory) is not None)
    found = examine(directory, usual_library(arguments.settings).conditions())
    plan: Plan | None = None
    if arguments.plan:
        with open_model.open_engine(directory, arguments) as model:
            plan = model.plan
    output = Output()
    if arguments.json:
        output.json(_json(described, found) | ({"plan": plan.to_json()} if plan else {}))
    else:
        output.write(table(_rows(described, found)))
        if plan is not None:
            output.write("\n" + table(plan_rows(plan)))
    return 0


def _json(described: ModelInfo, found: FoundModel) -> dict[str, Any]:
    return described.to_json() | {
        "name": found.name,
        "made_from": described.name,
        "made_seconds": _made_seconds(described),
        "size_bytes": found.size_bytes,
        "smallest_ceiling_bytes": found.smallest_ceiling_bytes,
        "tokens_per_second": found.tokens_per_second,
        "ceiling_bytes": found.ceiling_bytes,
    }


def _made_seconds(described: ModelInfo) -> float:
    """When the model was complete, in seconds since 1970: its manifest is written last."""
    return (Path(described.directory) / MANIFEST_FILE).stat().st_mtime


def _rows(described: ModelInfo, found: FoundModel) -> list[tuple[str, Any]]:
    spec = described.spec
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(_made_seconds(described)))
    note = " (synthetic: random weights)" if described.synthetic else ""
    rows: list[tuple[str, Any]] = [
        ("model", found.name),
        ("made from", f"{described.name}{note}, {made}"),
        ("directory", described.directory),
        ("size", format_bytes(sum(described.file_bytes.values()))),
        ("needs", _format_needs(found)),
        ("layers", f"{spec.n_layers}, width {spec.d_model}, {spec.n_heads} heads"),
        ("feed-forward", _format_layer(spec)),
        ("bundle", f"{format_bytes(spec.bundle_bytes)}, {spec.bundles_per_layer} a layer"),
        ("weights", _format_weights(described)),
        *([("predictors", described.predictor_dtype)] if described.predictor_dtype else []),
        ("vocabulary", spec.vocab_size),
        ("context", f"up to {spec.max_positions} tokens"),
        ("tokenizer", "yes" if described.has_tokenizer else "no: give prompts as --ids"),
        ("selector", _format_selector(described)),
    ]
    shares = described.activity or {}
    rows += [
        (f"  {name.replace('_', ' ')}", f"{shares[name]:.1%}")
        for name in ("sparsity", "false_negatives", "false_positives")
        if isinstance(shares.get(name), float)
    ]
    if isinstance(shares.get("perplexity_ratio"), float):
        rows.append(("  perplexity", f"{shares['perplexity_ratio']:.4f} of the exact model's"))
    return rows


def _format_weights(described: ModelInfo) -> str:
    """The encoding, and what was rounded a second time."""
    requantised = format_requantised(described.source)
    return ", ".join(filter(None, (described.spec.encoding_label, requantised)))


def _format_needs(found: FoundModel) -> str:
    """The least memory, and the speed to expect in the usual one."""
    from flashllm.library.formatting import speed_sentence

    if found.problem:
        return found.problem
    speed = speed_sentence(found)
    speed = speed[0].lower() + speed[1:]
    if found.smallest_ceiling_bytes is None:
        return speed
    return f"--memory {format_ceiling(found.smallest_ceiling_bytes)} at least; {speed}"


def _format_layer(spec: ModelSpec) -> str:
    experts = spec.experts
    if experts is None:
        return f"{spec.d_ffn} neurons a layer, {spec.activation_label}"
    return (
        f"{experts.n_experts} experts a layer, {experts.per_token} of them a token, each of"
        f" {experts.d_ffn} neurons, {spec.activation}"
    )


def _format_selector(described: ModelInfo) -> str:
    spec = described.spec
    if spec.experts is not None:
        return "the router of each layer (exact)"
    if described.has_predictors:
        return "predictors (lossy: may miss active neurons; --select all is exact)"
    if spec.sparse and spec.gate == "resident":
        return "the gate (exact)"
    why = "it has no predictors" if spec.sparse else f"{spec.activation} is never zero"
    return f"none: every neuron is read, since {why}"


FAST_PRODUCTS = "of vectors in 7 bits with weights in int8, int4 or mxfp4 (lossy; exact has 14)"


def plan_rows(plan: Plan) -> list[tuple[str, Any]]:
    """The rows of a plan: the split of its ceiling, and what follows from it."""
    rows: list[tuple[str, Any]] = [
        ("ceiling", format_bytes(plan.ceiling_bytes)),
        *((f"  {name}", format_bytes(nbytes)) for name, nbytes in plan.split.items()),
        ("smallest", format_bytes(plan.smallest_bytes)),
        ("select", SELECTOR_LABELS[plan.select]),
        ("prompt", _format_prompt(plan)),
        *([("products", FAST_PRODUCTS)] if plan.arithmetic == "fast" else []),
        ("kept", _format_kept(plan)),
        ("slots", _format_slots(plan)),
        ("context", _format_context(plan)),
        ("answers see", _format_seen(plan)),
        *([("embedding", "on flash: a token reads a row")] if plan.embedding_on_flash else []),
        *([] if plan.device is None else device_rows(plan.device)),
        ("I/O threads", f"{plan.io_threads}, gaps up to {format_bytes(plan.gap_bytes)} read over"),
    ]
    return rows


def device_rows(placed: DevicePlan) -> list[tuple[str, Any]]:
    """The rows of what lies on a device."""
    return [
        ("device", f"{placed.name}, {format_bytes(placed.memory_bytes)}"),
        *((f"  {name}", format_bytes(nbytes)) for name, nbytes in placed.split.items()),
        ("  least", format_bytes(placed.smallest_bytes)),
        ("  shares", format_shares(placed)),
    ]


def _format_context(plan: Plan) -> str:
    words = f"{plan.context} tokens, keys and values in {plan.kv_dtype}"
    pages = plan.kv_pages
    if pages is None or not pages.flash_bytes:
        return words
    return (
        f"{words}: {format_bytes(pages.memory_bytes)} in memory, up to"
        f" {format_bytes(pages.flash_bytes)} on disk"
    )


def _format_prompt(plan: Plan) -> str:
    neurons = "all experts that a token needs" if plan.select == "router" else "all neurons"
    if plan.lossy and plan.prompt_is_selected:
        neurons = "predicted ones (lossy)"
    words = f"{neurons}, {plan.prefill.tokens} tokens at a time"
    if not plan.prompt_is_selected:
        return words
    return f"{words}; up to {plan.needed_tokens} read less"


def _format_seen(plan: Plan) -> str:
    seen = plan.kv_selection
    if not seen.lossy:
        return "all keys and values"
    return (
        f"at most {seen.share:.0%} of keys and values from layer {seen.start_layer} on, by"
        f" {seen.policy} (lossy; --kv-policy full is exact)"
    )


def _format_kept(plan: Plan) -> str:
    if plan.select == "all":
        return "the first of each layer: all are needed"
    if plan.policy == "window":
        return f"by the paper's window of {plan.window} tokens"
    if plan.select == "router":
        return f"by the policy {plan.policy}, in each layer what it will soonest need again"
    return f"by the policy {plan.policy}, as many as a window of {plan.window} tokens needs"


def _format_slots(plan: Plan) -> str:
    together = sum(plan.slots_per_layer)
    if plan.select != "router":
        return f"{together} bundles"
    least, most = min(plan.slots_per_layer), max(plan.slots_per_layer)
    each = f"{least}" if least == most else f"{least} to {most}"
    return f"{together} experts, {each} a layer"


def verify(arguments: argparse.Namespace) -> int:
    """Reads the whole model and prints what is wrong with it."""
    from flashllm.convert import verify as verify_model
    from flashllm.library.verification import keep_verified

    progress = open_model.terminal_progress()
    directory = open_model.model_directory(arguments.model)
    report = verify_model(directory, progress)
    if report.ok:
        keep_verified(directory)
    output = Output()
    if arguments.json:
        output.json(report.to_json())
    else:
        output.write("".join(f"{_where(problem)}: {problem.what}\n" for problem in report.problems))
        checked = f"{report.bundles_checked} bundles, {format_bytes(report.bytes_checked)}"
        output.write(f"{'whole' if report.ok else 'damaged'}: {checked}, {report.seconds:.1f} s\n")
    if not report.ok:
        remark(f"{directory}: the model is damaged; convert it again")
        return EXIT_BAD_DATA
    return 0


def _where(problem: Problem) -> str:
    places = (("layer", problem.layer), ("bundle", problem.bundle), ("offset", problem.offset))
    return ", ".join([problem.file, *(f"{name} {at}" for name, at in places if at is not None)])


SHOW_EXAMPLES = """\
examples:
  flashllm show                                 the demo
  flashllm show big                             a model by its name in `flashllm ls`
  flashllm show ~/big.flash --plan              open it, and say how memory is split
"""


def add_show_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `show`."""
    add_model(parser)
    parser.add_argument("--plan", action="store_true", help="open it, and say how memory is split")
    add_options(parser, "model", MODEL_OPTIONS)
    parser.add_argument("--json", action="store_true", help="one JSON object")
