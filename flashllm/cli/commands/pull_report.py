"""The report of `flashllm pull`: what it will take, in rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashllm.units import (
    format_bytes,
    format_ceiling,
    format_duration,
    format_number,
    format_speed,
)

if TYPE_CHECKING:
    from flashllm.library.pull_plan import PullPlan


def plan_rows(plan: PullPlan, *, converts: bool, streams: bool) -> list[tuple[str, Any]]:
    """The plan, for a conversion that `converts` or not and that `streams` or not."""
    made = plan.converted
    here = f", {format_bytes(plan.here_bytes)} of them here already" if plan.here_bytes else ""
    if plan.here_bytes == plan.fetch_bytes:
        here = ", all of them here already"
    rows = [
        ("repository", f"{plan.repository}, {plan.revision} ({plan.commit[:7]})"),
        ("model", f"{made.features}, in {made.encoding}"),
        ("to fetch", f"{format_bytes(plan.fetch_bytes)} in {plan.files} files{here}"),
        ("memory", _memory(plan)),
        ("speed", _speed(plan)),
        ("converted", _disk(plan, converts=converts, streams=streams)),
    ]
    if plan.pickled:
        rows.append(("weights", "pickles: converted only with --keep-source --allow-pickle"))
    if plan.trains:
        rows.append(("predictors", "lossy, and trained on a text: --predictors train"))
    elif plan.select == "predicted" and not plan.predicts:
        train = "--predictors train" if not streams else "--keep-source --predictors train"
        rows.append(("predictors", f"none: every neuron is read; {train} for some"))
    elif not made.sparse:
        rows.append(("neurons", "never zero: a token reads whatever does not fit into memory"))
    return rows


def _memory(plan: PullPlan) -> str:
    made = plan.converted
    if made.smallest_ceiling_bytes is None:
        return "unknown"
    needs = f"{format_ceiling(made.smallest_ceiling_bytes)} at least"
    if made.ceiling_bytes is None:
        return needs
    ceiling = format_ceiling(made.ceiling_bytes)
    if plan.fits:
        return f"{needs}; it fits into the {ceiling} there are"
    if plan.narrower:
        dtype, fewer = plan.narrower[0]
        return (
            f"{needs}: more than the {ceiling} there are; --dtype {dtype} needs"
            f" {format_ceiling(fewer)}"
        )
    return f"{needs}: more than the {ceiling} there are, in fewer bits too"


def _speed(plan: PullPlan) -> str:
    made = plan.converted
    if made.tokens_per_second is None or made.ceiling_bytes is None:
        return "unknown; `flashllm bench io` measures disk and machine"
    seconds = 1 / made.tokens_per_second
    words = (
        f"about {format_speed(made.tokens_per_second)} tokens/s"
        f" ({format_number(seconds, digits=2)} s a token) in {format_ceiling(made.ceiling_bytes)}"
    )
    return f"{words}; assumed: {made.assumed}" if made.assumed else words


def _disk(plan: PullPlan, *, converts: bool, streams: bool) -> str:
    made = plan.converted
    words = f"{format_bytes(made.disk_bytes)} on disk, {format_bytes(made.free_bytes)} free"
    if converts:
        how = "while it is fetched" if streams else "beside the source"
        words += f"; {format_bytes(plan.at_once_bytes)} at once, {how}"
    return f"{words}; converting takes about {format_duration(max(plan.convert_seconds, 1))} here"
