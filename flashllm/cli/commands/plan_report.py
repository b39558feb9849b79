"""The report of `flashllm plan`: tables, sentences, and one JSON object."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flashllm.units import (
    MIB,
    format_bytes,
    format_ceiling,
    format_count,
    format_seconds,
    format_speed,
)

if TYPE_CHECKING:
    from flashllm.planning.advisor import Advice, Ceilings, Encoding, Scenario
    from flashllm.planning.latency_model import FirstEstimate, TokenEstimate
    from flashllm.planning.plan import Plan
    from flashllm.spec import ModelSpec

WIDTH = 79
ADVICE_MOST = 4
WORTH_A_ROW = 1.1
"""How many times as much the first tokens of a run read, if that is told."""
BOUND_LABELS = {
    "flash": "reading from flash",
    "dram": "moving weights through memory",
    "overhead": "what a layer costs whatever its size",
}


def weight_rows(spec: ModelSpec, stride: int) -> list[tuple[str, Any]]:
    """The model's weights by component."""
    from flashllm.planning.shape_estimate import Weights

    weights = Weights.of(spec)

    def part(nbytes: int) -> str:
        return f"{format_bytes(nbytes)}, {nbytes / weights.total:.1%}"

    padding = weights.padding / max(weights.ffn, 1)
    rows = [
        ("weights", f"{format_bytes(weights.total)} in {spec.encoding_label}"),
        ("  embeddings", part(weights.embeddings)),
        ("  attention", part(weights.attention)),
        ("  gates", part(weights.gate)),
        ("  feed-forward, on flash", f"{part(weights.ffn)}, and {padding:.1%} more for padding"),
        (
            f"{spec.bundle_noun}s",
            f"{spec.bundled_layers} x {spec.bundles_per_layer},"
            f" {format_bytes(stride)} each on flash",
        ),
    ]
    return [row for row in rows if row[0] != "  gates" or weights.gate]


def expected_rows(
    scenario: Scenario, made: Plan, expected: TokenEstimate, limits: Ceilings
) -> list[tuple[str, Any]]:
    """What a token will cost, and the ceilings that matter."""
    traffic, token = expected.traffic, expected.token
    rows: list[tuple[str, Any]] = []
    if token is not None:
        parts = f"flash {_seconds(token.flash)}, memory {_seconds(token.dram)}, overhead"
        rows += [
            (
                "a token",
                f"{_seconds(token.total)} ({format_speed(1 / token.total)} tokens a second)",
            ),
            ("  of it", f"{parts} {_seconds(token.overhead)}"),
            ("  bound by", BOUND_LABELS[token.bound]),
        ]
        # Less than a thousandth is rounding of float sums.
        if token.overlap > 1e-3 * token.total:
            rows.insert(2, ("  at once", f"{_seconds(token.overlap)}: reading beside computing"))
    if expected.prompts:
        cold = [f"{one.tokens}: {_seconds(one.cold_seconds)}" for one in expected.prompts]
        warm = [f"{one.tokens}: {_seconds(one.warm_seconds)}" for one in expected.prompts]
        rows.append(("first token", f"by tokens of the prompt {', '.join(cold)}"))
        if warm != cold:
            held = min(made.slots_per_layer) >= scenario.spec.bundles_per_layer
            why = "nothing is read" if held else "less is read"
            rows.append(("  later prompts", f"{', '.join(warm)}: {why}"))
    bundles = scenario.spec.bundled_layers * scenario.spec.bundles_per_layer
    rows += [
        (
            f"{made.bundle_noun}s a token",
            f"{traffic.used / bundles:.2%}, {traffic.hit_rate:.1%} in memory",
        ),
        ("  from flash", f"{format_bytes(traffic.bytes_read)} in {traffic.reads:.0f} reads"),
        *_first_rows(scenario.expect_first(made), expected),
        ("through memory", f"{format_bytes(expected.dram.total)} a token"),
        ("smallest ceiling", format_ceiling(limits.smallest)),
    ]
    if expected.kv_flash_bytes:
        most = "at most " if made.kv_selection.policy == "infinigen" else ""
        more = (
            f"{most}{format_bytes(expected.kv_flash_bytes)} of keys and values from flash a token"
        )
        if expected.kv_flash_seconds is not None:
            more += f", {_seconds(expected.kv_flash_seconds)} more"
        rows.append((f"at {format_count(made.context)} tokens", more))
    if limits.cliff is not None:
        rows.append(("cliff", f"below {format_ceiling(limits.cliff)} nothing stays between tokens"))
    rows.append(("all in memory", f"from {format_ceiling(limits.whole)}"))
    if made.select == "oracle":
        rows.append(("select", "the oracle reads every neuron to know which it needs"))
    return rows


def _first_rows(first: FirstEstimate | None, expected: TokenEstimate) -> list[tuple[str, Any]]:
    """What a run costs until its slots are full, where that is worth a row."""
    if first is None or first.bytes_read < WORTH_A_ROW * expected.traffic.bytes_read:
        return []
    seconds = "" if first.seconds is None else f" and {_seconds(first.seconds)}"
    each = f"{first.hit_rate:.1%} in memory, {format_bytes(first.bytes_read)}{seconds} each"
    return [(f"  first {first.tokens} tokens", f"{each}, while empty slots are filled")]


def verdict(
    scenario: Scenario,
    made: Plan,
    expected: TokenEstimate,
    limits: Ceilings,
    advice: Sequence[Advice],
) -> str:
    """Sentences: whether it fits, what a token waits for, what helps, what was assumed."""
    sentences = [_fits(scenario, made, expected)]
    if limits.cliff is not None and made.ceiling_bytes < limits.cliff:
        sentences.append(
            "This ceiling is below the cliff: the slots do not hold what one token uses, so layers"
            f" are gone through in pieces and read again and again. Try --memory"
            f" {_mebibytes(limits.cliff)}MiB or more."
        )
    if expected.assumed:
        sentences.append(
            f"Assumed: {expected.assumed}."
            if made.select == "router"
            else f"Assumed: {expected.assumed}; --active SHARE plans for another share, and"
            " `flashllm eval` counts it once the model is converted."
        )
    if (prefetch := expected.prefetch) is not None:
        sentences.append(
            f"Also assumed: {prefetch.recall:.0%} of what a token reads is guessed early, and"
            f" {prefetch.precision:.0%} of the guesses are right; `flashllm bench tokens` counts"
            " them."
        )
    if expected.token is None:
        sentences.append(_seconds_missing(scenario))
    elif scenario.profile is not None and not scenario.profile.complete:
        sentences.append(
            "The profile was ended early, so times are rougher; `flashllm bench io` measures again."
        )
    elif scenario.profile is not None and scenario.profile.quick:
        sentences.append(
            "The times are by a quick profile, a sample of some seconds; `flashllm bench io`"
            " measures disk and machine well."
        )
    paragraphs = [textwrap.fill(sentence, WIDTH) for sentence in sentences]
    if advice:
        lines = [f"  {_seconds(a.token_seconds):>8}  {a.change}" for a in advice[:ADVICE_MOST]]
        paragraphs.append("\n".join(["What would help, and the time a token would take:", *lines]))
    return "\n\n".join(paragraphs) + "\n"


def encoding_advice(encodings: Sequence[Encoding]) -> str:
    """Which encoding of the weights fits into a ceiling that is too small, or that none does."""
    if not encodings:
        return ""
    fitting = [encoding for encoding in encodings if encoding.fits]
    if fitting:
        best = fitting[0]
        return f". Or {best.change}, which needs {format_ceiling(best.smallest_bytes)}"
    least = min(encodings, key=lambda encoding: encoding.smallest_bytes)
    needs = format_ceiling(least.smallest_bytes)
    return f". No encoding fits: {least.change} needs {needs}"


def _seconds_missing(scenario: Scenario) -> str:
    if scenario.profile is not None and scenario.profile.quick:
        return (
            "The quick profile knows the disk alone, so there are no seconds: `flashllm bench io`"
            " measures this machine too."
        )
    if scenario.profile is not None:
        return (
            "The profile knows the disk and not enough of this machine, so there are no seconds:"
            " measure without --no-machine."
        )
    return (
        "How long that takes depends on the disk and on this machine: `flashllm bench io`"
        " measures them, with --quick in some seconds, and then plan tells seconds too."
    )


def _fits(scenario: Scenario, made: Plan, expected: TokenEstimate) -> str:
    spec = scenario.spec
    fits = f"It fits into {format_ceiling(made.ceiling_bytes)}."
    if made.select == "oracle":
        return f"{fits} A token reads every neuron, to know which of them are not zero."
    if made.select == "router":
        return f"{fits} A token reads the experts that its routers choose and that no slot holds."
    if made.select != "all":
        named = "its predictors name (lossy)" if made.select == "predicted" else "are not zero"
        return f"{fits} A token reads the neurons that {named} and that no slot holds."
    why = f" since {spec.activation} is never zero" if not spec.sparse else ""
    streamed = expected.traffic.bytes_read
    if not streamed:
        return f"{fits} A token needs every neuron{why}; all of them stay in memory."
    rough = (
        "" if expected.token else f": {streamed / 1e9:.1f} s a token on a disk that reads 1 GB/s"
    )
    return (
        f"{fits} A token needs every neuron{why}, and reads {format_bytes(streamed)} of them from"
        f" flash ({format_bytes(made.split['slots'])} stay in memory){rough}."
    )


def to_json(
    scenario: Scenario,
    made: Plan,
    expected: TokenEstimate,
    limits: Ceilings,
    advice: Sequence[Advice],
) -> dict[str, Any]:
    """Everything, as plain values."""
    import dataclasses

    from flashllm.planning import shape_estimate

    profile, first = scenario.profile, scenario.expect_first(made)
    return shape_estimate.to_json(scenario.spec, made, scenario.sizes.stride) | {
        "profile": None
        if profile is None
        else {
            "device": dataclasses.asdict(profile.device),
            "machine": profile.machine_name,
            "date": profile.date,
            "complete": profile.complete,
            "quick": profile.quick,
        },
        "expected": expected.to_json(),
        "first_tokens": None if first is None else dataclasses.asdict(first),
        "ceilings": limits.to_json(),
        "advice": [dataclasses.asdict(one) for one in advice],
    }


def _seconds(seconds: float) -> str:
    """A time for people, in three digits."""
    return format_seconds(seconds * 1e9)


def _mebibytes(nbytes: int) -> int:
    # Rounded up, so that the figure printed is accepted when it is typed in.
    return -(-nbytes // MIB)
