"""The lines of the I/O panel, from the numbers of the last tokens. Pure: content in, no widgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from textual.content import Content

from flashllm.telemetry.formatting import PART_GROUPS, format_split
from flashllm.ui.panels.bars import columns, runs, sparkline, stacked
from flashllm.units import (
    format_bytes,
    format_bytes_moved,
    format_count,
    format_memory,
    format_number,
    format_rate,
    format_seconds,
)
from flashllm.untrusted.terminal import sanitize_line

if TYPE_CHECKING:
    from flashllm.planning.plan import Plan
    from flashllm.telemetry.costs import PrefillCost
    from flashllm.telemetry.device_rates import DeviceRates
    from flashllm.telemetry.token_report import TokenNumbers

TOKENS = 40
"""As many are shown as bars at most."""
CHART_HEIGHT = 5
FULL_HEIGHT, SMALL_HEIGHT = CHART_HEIGHT + 3, 4
GLYPHS = "▒▓█░"
"""Of the groups of parts, in the order of PART_GROUPS; in turn those of the ceiling's components.
A terminal of no colour shows these alone."""
COLORS = ("$success", "$warning", "$error", "$foreground 50%")
NAME_COLOR = "$foreground 60%"
_NAME_WIDTH, _SPARK = 8, 10
_TEXT_WIDTH = 44
_SPLIT_CELLS = 12


@dataclass(slots=True)
class Shown:
    """What the panel knows; nothing of it is computed before it is shown."""

    plan: Plan | None = None
    rates: DeviceRates | None = None
    prefill: PrefillCost | None = None
    tokens: Sequence[TokenNumbers] = field(default_factory=tuple)
    """The last ones, without those that came with a prompt."""


def full_lines(shown: Shown, width: int) -> list[Content]:
    """FULL_HEIGHT lines: bars with numbers beside them, and how the memory is split."""
    room = max(min(TOKENS, width - _TEXT_WIDTH), 1)
    tokens = shown.tokens[-room:]
    chart = [*_chart(tokens, room), _legend()]
    numbers = [
        _named("token", _format_tokens(tokens)),
        _named("MB/tok", _series([token.bytes_read / 1e6 for token in tokens], _megabytes)),
        _named("in DRAM", _format_in_dram(shown, tokens)),
        _named("flash", format_flash(tokens)),
        _named("bound", format_bound(tokens)),
        _named("prompt", format_prefill(shown.prefill, width - room - 2 - _NAME_WIDTH)),
    ]
    beside = [
        Content.assemble(bars.pad_right(max(room + 2 - bars.cell_length, 0)), text)
        for bars, text in zip(chart, numbers, strict=True)
    ]
    return [*beside, _named("memory", _split(shown.plan)), _named("RSS", _format_rss(shown))]


def small_lines(shown: Shown, width: int) -> list[Content]:
    """SMALL_HEIGHT lines: the last token as one bar, and the numbers that matter most."""
    if not shown.tokens:
        waiting = Content("no token yet")
        return [waiting, _named("memory", _split(shown.plan)), Content(""), _rss_line(shown, width)]
    last = shown.tokens[-1]
    hits = sparkline([token.hit_rate for token in shown.tokens], _SPARK // 2, high=1.0)
    reads = sparkline([token.bytes_read for token in shown.tokens], _SPARK // 2)
    nbytes = format_bytes_moved(last.bytes_read)
    moved = f"{nbytes:<8}{reads} in DRAM {100 * last.hit_rate:.0f} % {hits}"
    rates = f"flash {format_flash(shown.tokens, short=True)}, bound {format_bound(shown.tokens)}"
    if seen := format_seen(shown.plan, shown.tokens):
        rates += f", {seen}"
    bar = _one_bar(last, max(width - _NAME_WIDTH, 1))
    return [
        Content.assemble(f"{format_seconds(last.wall_ns):<{_NAME_WIDTH}}", *bar),
        Content(moved),
        Content(rates),
        _rss_line(shown, width),
    ]


def format_flash(tokens: Sequence[TokenNumbers], short: bool = False) -> str:
    """`2.91 GB/s, 83 % of profile` over these tokens; in short without the rate.

    Where the profile says nothing the rate is all that is known.
    """
    read = [token for token in tokens if token.flash_bytes_per_second]
    if not read:
        return "nothing read" if tokens else "no token yet"
    busy = sum(map(_busy, read))
    rate = sum(token.bytes_read for token in read) / busy
    if any(token.of_profile is None for token in read):
        return format_rate(rate) if short else f"{format_rate(rate)} of unknown"
    shares = sum(_busy(token) * (token.of_profile or 0) for token in read)
    share = f"{100 * shares / busy:.0f} % of {read[-1].profile_name}"
    return share if short else f"{format_rate(rate)}, {share}"


def format_bound(tokens: Sequence[TokenNumbers]) -> str:
    """`54 % (98 ms by flash)` over these tokens; `unknown` where a rate is."""
    known = [token for token in tokens if token.of_bound is not None]
    if not known:
        return "unknown" if tokens else "no token yet"
    bound_ns = sum(token.bound_ns or 0 for token in known)
    share = bound_ns / sum(token.wall_ns for token in known)
    return f"{100 * share:.0f} % ({format_seconds(bound_ns / len(known))} by {known[-1].binds})"


def format_seen(plan: Plan | None, tokens: Sequence[TokenNumbers]) -> str:
    """`KV 9 % (lossy), recall 0.97` over these tokens; "" where all keys and values are seen."""
    if plan is None or not plan.kv_selection.lossy or not tokens:
        return ""
    share = sum(token.kv_share for token in tokens) / len(tokens)
    recalls = [token.kv_recall for token in tokens if token.kv_recall is not None]
    recall = f", recall {sum(recalls) / len(recalls):.2f}" if recalls else ""
    return f"KV {100 * share:.0f} % (lossy){recall}"


def format_prefill(prefill: PrefillCost | None, cells: int) -> str:
    """`412 tok, 300 kept (reasoning cut), 2.1 s, 812 MB`.

    With few cells bytes and time give way to why no more was kept, which nothing else says.
    """
    if prefill is None or not prefill.tokens:
        return "none yet"
    why = f" ({sanitize_line(prefill.not_reused_why)})" if prefill.not_reused_why else ""
    parts = [f"{format_count(prefill.tokens)} tok"]
    if prefill.reused or why:
        parts.append(f"{format_count(prefill.reused)} kept{why}")
    parts += [format_seconds(prefill.wall_ns), format_bytes_moved(prefill.bytes_read)]
    while why and len(parts) > 2 and len(", ".join(parts)) > cells:
        parts.pop()
    return ", ".join(parts)


def groups(token: TokenNumbers) -> list[float]:
    """Nanoseconds by group of parts, in the order of PART_GROUPS."""
    parts = dict(token.parts)
    return [sum(parts[part] for part in names) for names in PART_GROUPS.values()]


def _chart(tokens: Sequence[TokenNumbers], room: int) -> list[Content]:
    rows = columns([groups(token) for token in tokens], CHART_HEIGHT)
    empty = " " * (room - len(tokens))
    return [Content.assemble(empty, *_cells(row)) for row in rows]


def _one_bar(token: TokenNumbers, cells: int) -> list[tuple[str, str]]:
    parts = groups(token)
    lengths = enumerate(stacked(parts, sum(parts), cells))
    return [(GLYPHS[kind] * length, COLORS[kind]) for kind, length in lengths if length]


def _cells(kinds: Sequence[int]) -> list[tuple[str, str]]:
    return [
        (" " * length, "") if kind < 0 else (GLYPHS[kind] * length, COLORS[kind])
        for kind, length in runs(kinds)
    ]


def _legend() -> Content:
    names = enumerate(PART_GROUPS)
    return Content(" ").join(
        Content.assemble((GLYPHS[kind], COLORS[kind]), f" {name}") for kind, name in names
    )


def _named(name: str, text: str | Content) -> Content:
    return Content.assemble((f"{name:<{_NAME_WIDTH}}", NAME_COLOR), text)


def _format_tokens(tokens: Sequence[TokenNumbers]) -> str:
    if not tokens:
        return "none yet"
    highest = max(token.wall_ns for token in tokens)
    last = tokens[-1]
    return f"{last.index + 1}: {format_seconds(last.wall_ns)}, bars to {format_seconds(highest)}"


def _series(
    values: Sequence[float], words: Callable[[float], str], high: float | None = None
) -> str:
    if not values:
        return "no token yet"
    return f"{sparkline(values, _SPARK, high=high)} {words(values[-1])}"


def _format_in_dram(shown: Shown, tokens: Sequence[TokenNumbers]) -> str:
    text = _series([token.hit_rate for token in tokens], _percent, 1.0)
    seen = format_seen(shown.plan, tokens)
    return f"{text}  {seen}" if seen else text


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _megabytes(number: float) -> str:
    return f"{format_number(number)} MB"


def _split(plan: Plan | None) -> Content:
    """What the plan takes as a bar, the largest component first, and names in the same colours.

    The bar is of what is taken, since a ceiling may be many times that.
    """
    if plan is None:
        return Content("no model is open")
    words, unit = format_split(plan)
    sizes = [float(plan.split[name]) for name, _ in words]
    bar, names = [], []
    for kind, cells in enumerate(stacked(sizes, sum(sizes), _SPLIT_CELLS)):
        style = COLORS[kind % len(COLORS)]
        bar.append((GLYPHS[kind % len(GLYPHS)] * cells, style))
        name, size = words[kind]
        names.append((f"{name} {size}" if kind else f"{name} {size} {unit}", style))
    if (free := plan.ceiling_bytes - sum(sizes)) > 0:
        names.append((f"free {format_bytes(free)}", NAME_COLOR))
    listed = Content(", ").join(Content.styled(*name) for name in names)
    return Content.assemble(*bar, "  ", listed)


def _format_rss(shown: Shown) -> str:
    device = sanitize_line(shown.rates.origin) if shown.rates is not None else ""
    if shown.plan is None or not shown.tokens:
        return f"no token yet   rates: {device}"
    memory = format_memory(shown.tokens[-1].rss_bytes, shown.plan.ceiling_bytes)
    return f"{memory}   rates: {device}"


def _rss_line(shown: Shown, width: int) -> Content:
    memory = ""
    if shown.plan is not None and shown.tokens:
        memory = f"RSS {format_memory(shown.tokens[-1].rss_bytes, shown.plan.ceiling_bytes)}; "
    return Content(f"{memory}prompt {format_prefill(shown.prefill, width - len(memory) - 7)}")


def _busy(token: TokenNumbers) -> float:
    """Seconds in which at least one read was under way, for a token that read something."""
    return token.bytes_read / (token.flash_bytes_per_second or 1)
