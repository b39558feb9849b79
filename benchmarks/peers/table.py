"""Results of all contenders' runs: medians, ratios, one table, one JSON object."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.peers.contenders import OURS, Contender
from benchmarks.peers.runs import Outcome
from flashllm.bench.sample_statistics import Spread
from flashllm.bench.steal_time import format_steal_share, most_stolen
from flashllm.units import format_bytes
from flashllm.untrusted.terminal import sanitize_line

COLUMNS = (
    "", "parameters", "bits a weight", "memory limit", "prompt", "s/token (min to max, runs)",
    "times ours", "first 20 tokens, s each", "times ours", "tokens 100 to 120, s each",
    "times ours", "start s", "first prompt s", "prompt s", "times ours", "peak RSS",
    "peak of the group", "stolen, at most", "how",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One contender under one limit; `token_seconds` of None where no run ended well."""

    contender: str
    parameters: int
    limit_bytes: int | None
    prompt_tokens: int
    token_seconds: Spread | None
    """Over the runs; of each run, the mean over its tokens."""
    tokens: int
    """Timed, in all runs together."""
    ratio: float | None
    """Its seconds a token over ours: the median of the rounds, each against ours around it."""
    early_token_seconds: float | None
    """The median over the runs of the mean over the first 20 tokens."""
    early_ratio: float | None
    late_token_seconds: float | None
    """The same of tokens 100 to 120."""
    late_ratio: float | None
    start_seconds: float | None
    first_prefill_seconds: float | None
    """Of the prompt before, which was the first of the process, where there was one."""
    prefill_seconds: float | None
    prefill_ratio: float | None
    """Of its prompts, as `ratio`."""
    rss_peak_bytes: int | None
    group_peak_bytes: int | None
    how: str = ""
    problem: str = ""
    weight_bits: float = 0.0
    stolen_share_max: float | None = None
    """Of all processors' time in any of its runs, those that failed too."""

    def markdown(self) -> str:
        """A row of the table."""
        limit = "none" if self.limit_bytes is None else format_bytes(self.limit_bytes)
        bits = f"{self.weight_bits:.2f}"
        front = f"| {self.contender} | {self.parameters:,} | {bits} | {limit} "
        front += f"| {self.prompt_tokens} tokens "
        if self.token_seconds is None:
            return front + f"| {self.problem} |" + " |" * (len(COLUMNS) - 6)
        spread = self.token_seconds
        cells = [
            f"{spread.median:.3g} ({spread.min:.3g} to {spread.max:.3g}, {len(spread.samples)})",
            _figure(self.ratio),
            _figure(self.early_token_seconds),
            _figure(self.early_ratio),
            _figure(self.late_token_seconds),
            _figure(self.late_ratio),
            f"{self.start_seconds:.1f}",
            _figure(self.first_prefill_seconds),
            _figure(self.prefill_seconds),
            _figure(self.prefill_ratio),
            format_bytes(self.rss_peak_bytes or 0),
            "" if self.group_peak_bytes is None else format_bytes(self.group_peak_bytes),
            format_steal_share(self.stolen_share_max),
            self.how,
        ]
        if self.problem:
            cells[0] += f"; once {self.problem}"
        return front + "| " + " | ".join(cells) + " |"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        spread = self.token_seconds.to_json() if self.token_seconds else None
        return asdict(self) | {"token_seconds": spread}


def rows_of(contenders: Sequence[Contender], outcomes: Sequence[Outcome]) -> list[Row]:
    """A row for each contender, limit and prompt that was tried, in the order of the runs."""
    tried = list(dict.fromkeys((o.limit_bytes, o.prompt_tokens) for o in outcomes))
    rows = []
    for of_these in tried:
        under = [o for o in outcomes if (o.limit_bytes, o.prompt_tokens) == of_these]
        rows += [
            _row(contender, [o for o in under if o.contender == contender.name], under)
            for contender in contenders
            if any(outcome.contender == contender.name for outcome in under)
        ]
    return rows


def _row(contender: Contender, own: Sequence[Outcome], under: Sequence[Outcome]) -> Row:
    good = [outcome for outcome in own if outcome.status == "ok"]
    bad = [f"{o.status}: {o.message}" for o in own if o.status != "ok"]
    peaks = [o.group.peak_bytes for o in own if o.group is not None]
    known = [peak for peak in peaks if peak is not None]
    is_ours = contender.name == OURS
    return Row(
        contender=contender.name,
        parameters=contender.parameters,
        limit_bytes=own[0].limit_bytes,
        token_seconds=Spread.of([o.token_seconds for o in good]) if good else None,
        tokens=sum(len(outcome.samples_ns) for outcome in good),
        prompt_tokens=own[0].prompt_tokens,
        ratio=None if is_ours else ratio_to_ours(good, under, lambda one: one.token_seconds),
        early_token_seconds=_median([o.early_token_seconds for o in good]),
        early_ratio=None if is_ours else ratio_to_ours(good, under, early_seconds),
        late_token_seconds=_median([late_seconds(o) for o in good if late_seconds(o)]),
        late_ratio=None if is_ours else ratio_to_ours(good, under, late_seconds),
        start_seconds=_median([o.start_seconds for o in good]),
        first_prefill_seconds=_median(
            [o.first_prefill_ns / 1e9 for o in good if o.first_prefill_ns]
        ),
        prefill_seconds=_median([o.prefill_ns / 1e9 for o in good]),
        prefill_ratio=None if is_ours else ratio_to_ours(good, under, lambda one: one.prefill_ns),
        rss_peak_bytes=max((o.rss_peak_bytes for o in good), default=None),
        group_peak_bytes=max(known, default=None),
        how=_cell(good[-1].how) if good else "",
        problem=_cell(bad[0]) if bad else "",
        weight_bits=contender.weight_bits,
        stolen_share_max=most_stolen([outcome.stolen_share for outcome in own]),
    )


def early_seconds(outcome: Outcome) -> float:
    """A token's, of the first 20."""
    return outcome.early_token_seconds


def late_seconds(outcome: Outcome) -> float:
    """A token's, of those from the 100th to the 120th; 0 where there are none."""
    return outcome.late_token_seconds or 0.0


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def ratio_to_ours(
    own: Sequence[Outcome], under: Sequence[Outcome], seconds: Callable[[Outcome], float]
) -> float | None:
    """The median over a peer's runs of its time over the mean of ours just before and after."""
    ratios = []
    for outcome in own:
        place = next(i for i, other in enumerate(under) if other is outcome)
        before = [o for o in under[:place] if o.contender == OURS and o.status == "ok"]
        after = [o for o in under[place:] if o.contender == OURS and o.status == "ok"]
        around = statistics.fmean([seconds(o) for o in [*before[-1:], *after[:1]]] or [0.0])
        if around > 0 and seconds(outcome) > 0:
            ratios.append(seconds(outcome) / around)
    return statistics.median(ratios) if ratios else None


def limited_beside_free(rows: Sequence[Row]) -> list[str]:
    """For each peer that ran without a limit, how much faster or slower ours is under one."""
    said = []
    limited = [row for row in rows if row.contender == OURS and row.limit_bytes is not None]
    for own in limited:
        for row in rows:
            if row.contender == OURS or row.limit_bytes is not None:
                continue
            if row.prompt_tokens != own.prompt_tokens:
                continue
            if own.token_seconds is None or own.limit_bytes is None or row.token_seconds is None:
                continue
            times = row.token_seconds.median / own.token_seconds.median
            said.append(
                f"{OURS} under {format_bytes(own.limit_bytes)} is {times:.2f} times as fast as"
                f" {row.contender} without a limit (medians)."
            )
    return said


def table(
    rows: Sequence[Row], skipped: Sequence[str], *, complete: bool = True, synthetic: bool = False
) -> str:
    """A Markdown table, with remarks below."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + " --- |" * len(COLUMNS)]
    lines += [row.markdown() for row in rows]
    beside = limited_beside_free(rows)
    if beside or skipped or synthetic or not complete:
        lines.append("")
    lines += beside
    if synthetic:
        lines.append("The weights are synthetic: made up, with the activity of a trained model.")
    lines += [f"Left out: {_cell(reason)}" for reason in skipped]
    if not complete:
        lines.append("Interrupted: the runs up to then, not all that were asked for.")
    return "\n".join(lines) + "\n"


def report(
    header: dict[str, Any],
    contenders: Sequence[Contender],
    outcomes: Sequence[Outcome],
    skipped: Sequence[str],
    complete: bool,
) -> dict[str, Any]:
    """Everything, to be kept."""
    return {
        "header": header,
        "complete": complete,
        "contenders": {
            contender.name: {
                "versions": contender.versions,
                "parameters": contender.parameters,
                "files": [str(path) for path in contender.files],
                "file_bytes": _file_bytes(contender),
            }
            for contender in contenders
        },
        "rows": [row.to_json() for row in rows_of(contenders, outcomes)],
        "left_out": list(skipped),
        "runs": [outcome.to_json() for outcome in outcomes],
    }


def _file_bytes(contender: Contender) -> int | None:
    """Bytes of what it reads; None where that was taken away meanwhile."""
    try:
        return sum(path.stat().st_size for path in contender.files)
    except OSError:
        return None


def _cell(text: str) -> str:
    """Text that breaks no table."""
    return sanitize_line(text).replace("|", "/")
