"""A token's cost compared with what the machine allows, for the I/O panel and `--stats`.

Only numbers: no widgets, and nothing is measured here. Unknown values are None, never made up.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flashllm.system.clock import PARTS
from flashllm.telemetry.costs import TokenCost, ratio, useful_share
from flashllm.telemetry.device_rates import (
    DRAM_UNKNOWN,
    PROFILE,
    DeviceRates,
    MeasuredTraffic,
)
from flashllm.telemetry.formatting import (
    format_device,
    format_parts,
    format_share_of_profile,
    format_split,
)
from flashllm.telemetry.neuron_map import NeuronMap
from flashllm.units import (
    format_bytes,
    format_bytes_moved,
    format_count,
    format_memory,
    format_number,
    format_rate,
    format_seconds,
    format_token_count,
)
from flashllm.untrusted.terminal import sanitize_line

if TYPE_CHECKING:
    from flashllm.planning.plan import Plan
    from flashllm.telemetry.token_record import EngineToken

__all__ = ["DeviceRates", "NeuronMap", "TokenNumbers", "answer_numbers", "medians", "stats_text"]

_WIDTH, _NAME_WIDTH = 79, 9


@dataclass(frozen=True, slots=True)
class TokenNumbers:
    """One token's cost, for display; times in nanoseconds, sizes in bytes."""

    wall_ns: float
    parts: tuple[tuple[str, float], ...]
    """Nanoseconds by part, in the order of PARTS."""
    bytes_read: float
    reads: float
    hits: int
    misses: int
    hit_rate: float
    """Share of the neurons used that were in DRAM already."""
    depth_mean: float
    """Mean number of reads under way at once."""
    sizes: tuple[tuple[int, int], ...]
    """(smallest bytes, reads) of each class of sizes that had reads."""
    io_hidden_ns: float
    """Time in which reads were under way while something else was computed."""
    rss_bytes: int
    flash_bytes_per_second: float | None
    """Rate while at least one read was under way; None if there were no reads."""
    of_profile: float | None
    """That rate as a share of the profile's rate for reads of the same mean size."""
    bound_ns: float | None
    """The least time that this machine needs for the bytes moved."""
    of_bound: float | None
    """`bound_ns` as a share of the time taken; 1 is as fast as this machine can be."""
    binds: str = ""
    """What the bound is: "flash" or "DRAM"."""
    profile_name: str = PROFILE
    """How the profile is called that the rates are from."""
    text: str = ""
    """The token's text, unchanged."""
    index: int = 0
    """Number of the token in its answer."""
    prompt: bool = False
    """Whether the cost includes reading the prompt."""
    kv_share: float = 1.0
    """Share of the keys and values that were seen."""
    kv_recall: float | None = None
    """Share of attention's mass on those, of the heads that were measured."""

    @classmethod
    def of(
        cls,
        cost: TokenCost,
        rates: DeviceRates,
        plan: Plan,
        *,
        text: str = "",
        index: int = 0,
        prompt: bool = False,
        context_tokens: float = 0,
    ) -> TokenNumbers:
        """From what was counted; `prompt` is for an answer's first token, which has no bound."""
        rate = cost.bytes_read * 1e9 / cost.io_busy_ns if cost.io_busy_ns else None
        allowed = rates.flash_at(ratio(cost.bytes_read, cost.reads))
        bound = None
        if not prompt:
            moved = MeasuredTraffic(
                cost.wall_ns, cost.bytes_read, cost.reads, cost.hits, cost.misses, context_tokens
            )
            bound = rates.bound(plan, moved)
        return cls(
            wall_ns=cost.wall_ns,
            parts=tuple((part, cost.parts_ns.get(part, 0)) for part in PARTS),
            bytes_read=cost.bytes_read,
            reads=cost.reads,
            hits=cost.hits,
            misses=cost.misses,
            hit_rate=rates.hit_rate(plan, cost.hit_rate),
            depth_mean=ratio(cost.depth_ns, cost.io_busy_ns),
            sizes=tuple((1 << p, count) for p, count in enumerate(cost.size_histogram) if count),
            io_hidden_ns=cost.io_hidden_ns,
            rss_bytes=cost.rss_bytes,
            flash_bytes_per_second=rate,
            of_profile=rate / allowed if rate is not None and allowed else None,
            bound_ns=bound.larger_ns if bound else None,
            of_bound=bound.share if bound and cost.wall_ns else None,
            binds=bound.binds if bound else "",
            profile_name=rates.profile_name,
            text=text,
            index=index,
            prompt=prompt,
            kv_share=cost.kv_share,
            kv_recall=cost.kv_recall,
        )

    @property
    def read_bytes(self) -> float:
        """The mean size of a read."""
        return ratio(self.bytes_read, self.reads)


def answer_numbers(
    tokens: Sequence[EngineToken],
    rates: DeviceRates,
    plan: Plan,
    prompts: Mapping[int, int],
    begin: int = 0,
) -> list[TokenNumbers]:
    """Numbers of an answer's tokens, from token `begin` on.

    `prompts` maps the tokens for which a prompt was read to the prompt's length: the first token,
    and the first one after each continuation of a stopped answer.
    """
    return [
        TokenNumbers.of(
            token.cost,
            rates,
            plan,
            text=token.text,
            index=index,
            prompt=index in prompts,
            context_tokens=_context(prompts, index),
        )
        for index, token in enumerate(tokens[begin:], begin)
    ]


def _context(prompts: Mapping[int, int], index: int) -> int:
    """Tokens in the context before one of the answer's tokens."""
    place = max((place for place in prompts if place <= index), default=0)
    return prompts.get(place, 0) + index - place


def medians(tokens: Sequence[TokenNumbers]) -> dict[str, float]:
    """The median of each number, parts by their names, over decoded tokens; {} without any."""
    decoded = [token for token in tokens if not token.prompt]
    if not decoded:
        return {}
    found = {
        name: statistics.median(getattr(token, name) for token in decoded)
        for name in ("wall_ns", "bytes_read", "reads", "hit_rate", "depth_mean", "read_bytes")
    }
    for place, part in enumerate(PARTS):
        found[part] = statistics.median(token.parts[place][1] for token in decoded)
    for name in ("flash_bytes_per_second", "of_bound"):
        known = [value for token in decoded if (value := getattr(token, name)) is not None]
        if known:
            found[name] = statistics.median(known)
    return found


def stats_text(report: dict[str, Any], rates: DeviceRates, plan: Plan) -> str:
    """What a generation's report says, for people: prompt, time, flash, hits, bound, memory."""
    prefill, decode = report["prefill"], report["decode"]
    answer = format_token_count(len(report["tokens"]))
    if thought := report["reasoning_tokens"]:
        answer += f", {format_count(thought)} of them reasoning"
    rows = [("prompt", format_prompt_cost(report["prompt_tokens"], prefill))]
    if not (tokens := decode["tokens"]):
        rows.append(("answer", answer))
    else:
        wall_ns = decode["wall_ns"] / tokens
        # The end-of-answer token takes a step, but is not one of the answer's tokens.
        end = "" if tokens < len(report["tokens"]) else "with its end "
        speed = f"{end}{format_count(tokens)} decoded in {format_seconds(decode['wall_ns'])}"
        speed_each = format_number(decode["tokens_per_second"])
        each = f"{speed_each} a second, {format_seconds(wall_ns)} each"
        rows.append(("answer", f"{answer}; {speed}: {each}"))
        moved = decoded_traffic(decode, report["prompt_tokens"] + tokens / 2)
        rows += decode_rows(decode, rates, plan, moved)
        if plan.kv_selection.lossy:
            rows.append(("keys", _format_seen(decode, plan)))
    rows += memory_rows(report["memory"]["rss_peak_bytes"], plan)
    return stats_table(rows)


def decoded_traffic(decode: Mapping[str, Any], context_tokens: float) -> MeasuredTraffic:
    """What the tokens of a `decode` object moved, with so many tokens in the context on average."""
    return MeasuredTraffic(
        decode["wall_ns"],
        decode["bytes_read"],
        decode["reads"],
        decode["hits"],
        decode["misses"],
        context_tokens,
        decode["tokens"],
    )


def decode_rows(
    decode: Mapping[str, Any], rates: DeviceRates, plan: Plan, moved: MeasuredTraffic
) -> list[tuple[str, str]]:
    """Names and texts of what tokens that were decoded cost: time, flash, hits, bound."""
    rate = rates.hit_rate(plan, decode["hit_rate"])
    rows = [
        ("time", format_parts(decode["parts_ns"].items())),
        ("flash", _format_flash(decode, rates)),
        (
            "in DRAM" if plan.device is None else "held",
            f"{100 * rate:.1f} % of the {plan.bundle_noun}s that tokens needed",
        ),
    ]
    if guessed := decode["guessed"]:
        rows.append(("ahead", format_guesses(guessed, decode, plan.bundle_noun)))
    if neurons := decode["neurons"]:
        rows.append(("experts", format_silent(neurons, decode["neurons_silent"])))
    return [*rows, ("bound", format_bound(rates, plan, moved))]


def format_guesses(guessed: int, decode: Mapping[str, Any], bundle_noun: str) -> str:
    """How many bundles were read before it was known that they are needed, and what for."""
    # Conversations of earlier versions do not say how many bytes were wasted.
    wasted = format_bytes(decode.get("guess_bytes_wasted", 0))
    return (
        f"{guessed} {bundle_noun}s before their layer's turn; {decode['guesses_used']} were needed,"
        f" {wasted} read in vain"
    )


def format_silent(neurons: int, silent: int) -> str:
    """How many neurons of the chosen experts were zero, and what that leaves of their bytes."""
    return (
        f"{ratio(silent, neurons):.1%} of their neurons were zero;"
        f" {useful_share(neurons, silent):.1%} of their bytes were of use"
    )


def memory_rows(rss_peak_bytes: int, plan: Plan) -> list[tuple[str, str]]:
    """The same of the memory that was taken, and of the plan's parts of it."""
    split, unit = format_split(plan)
    rows = [
        ("memory", f"at most {format_memory(rss_peak_bytes, plan.ceiling_bytes)}"),
        ("", f"{', '.join(f'{name} {size}' for name, size in split)} {unit}"),
    ]
    if plan.device is not None:
        rows.append(("device", format_device(plan.device)))
    return rows


def stats_table(rows: Sequence[tuple[str, str]]) -> str:
    """Names and texts in two columns, as wide as a terminal, made harmless for one."""
    return "".join(_row(name, sanitize_line(text)) for name, text in rows)


def _row(name: str, text: str) -> str:
    lines = textwrap.wrap(text, _WIDTH - _NAME_WIDTH, break_on_hyphens=False)
    first, *others = lines or [""]
    below = "".join(f"{'':<{_NAME_WIDTH}}{line}\n" for line in others)
    return f"{name:<{_NAME_WIDTH}}{first}\n{below}"


def format_prompt_cost(tokens: int, prefill: Mapping[str, Any]) -> str:
    """`412 tokens in 2.1 s, 812 MB read; 300 of them were in the cache`."""
    text = f"{format_token_count(tokens)} in {format_seconds(prefill['wall_ns'])}"
    text += f", {format_bytes_moved(prefill['bytes_read'])} read"
    reused = prefill.get("reused_tokens", 0)
    return f"{text}; {format_count(reused)} of them were in the cache" if reused else text


def format_bound(rates: DeviceRates, plan: Plan, moved: MeasuredTraffic) -> str:
    """`54 % of what this machine allows: 98 ms a token, by flash`."""
    bound = rates.bound(plan, moved)
    if bound is None:
        return rates.origin if rates.flash_bytes_per_second is None else DRAM_UNKNOWN
    time = format_seconds(bound.larger_ns)
    quick = f", by a {rates.profile_name}" if rates.is_quick else ""
    return (
        f"{100 * bound.share:.0f} % of what this machine allows{quick}: {time} a token,"
        f" by {bound.binds}"
    )


def _format_seen(decode: Mapping[str, Any], plan: Plan) -> str:
    """`9.3 % of keys and values seen, by infinigen (lossy); recall 0.968 of attention`."""
    policy = plan.kv_selection.policy
    text = f"{100 * decode['kv_share']:.1f} % of keys and values seen, by {policy} (lossy)"
    if not decode["kv_recalls"]:
        return text
    return f"{text}; recall {decode['kv_recall']:.3f} of attention, in the heads measured"


def _format_flash(decode: Mapping[str, Any], rates: DeviceRates) -> str:
    tokens, reads, nbytes = decode["tokens"], decode["reads"], decode["bytes_read"]
    if not reads:
        return "nothing was read"
    text = (
        f"{format_bytes_moved(nbytes / tokens)} a token in {reads / tokens:.0f} reads"
        f" of {format_bytes_moved(nbytes / reads)}, {decode['queue_depth_mean']:.1f} at once"
    )
    speed = decode["io_bytes_per_second"]
    share = format_share_of_profile(speed, rates.flash_at(nbytes / reads), rates.profile_name)
    return f"{text}; {format_rate(speed)}, {share}"
