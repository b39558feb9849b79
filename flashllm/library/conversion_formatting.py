"""Texts about what a conversion would make, and about its progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashllm.dtypes import GROUP_BYTES
from flashllm.library.conversion_job import ConvertJob, JobState, JobStatus
from flashllm.library.conversion_options import NO_PREDICTORS, TRAIN, ConvertOptions
from flashllm.library.formatting import clean, format_least_memory
from flashllm.units import format_bytes, format_ceiling, format_duration, format_speed

if TYPE_CHECKING:
    from flashllm.convert import ConversionPlan
    from flashllm.library.conversion_preview import Preview


def format_phase(status: JobStatus) -> str:
    """`feed-forward bundles: 34 %, 12 s left`."""
    if not status.phase:
        return "beginning"
    words = f"{status.phase}: {100 * status.share:.0f} %"
    left = status.seconds_left
    if status.whole_share is not None and status.whole_seconds_left is not None:
        words += f"; all: {100 * status.whole_share:.0f} %"
        left = status.whole_seconds_left
    return words if left is None else f"{words}, {format_duration(left)} left"


def format_plan(plan: ConversionPlan, seconds: float, origin: str) -> list[str]:
    """What a conversion will write, where, how large, how long; `origin` of the time, or ""."""
    requantised = f", requantised from {', '.join(plan.requantised)}" if plan.requantised else ""
    what = plan.spec.encoding_label + requantised
    lines = [
        f"writes {format_bytes(plan.written_bytes)} to {clean(str(plan.destination))}, in {what};"
        f" reads {format_bytes(plan.source_bytes)} of {clean(str(plan.source))}"
    ]
    room = f"{format_bytes(plan.free_bytes)} are free"
    if plan.scratch_bytes:
        room += f", {format_bytes(plan.scratch_bytes)} more are needed until it is complete"
    why = f", {origin}" if origin else "; its first seconds will tell better"
    time = f"about {format_duration(seconds)}" if seconds >= 1 else "less than a second"
    return [*lines, f"takes {time}{why}; {room}"]


def format_amount(status: JobStatus) -> str:
    """`1.2 GiB of 3.6 GiB`."""
    return f"{format_bytes(status.done_bytes)} of {format_bytes(status.total_bytes)}"


def format_job(job: ConvertJob, status: JobStatus | None = None) -> str:
    """The job for a status line: `converting big.flash: feed-forward bundles: 34 %, 12 s left`."""
    name, status = clean(job.destination.name), status or job.status
    if status.state is JobState.DONE:
        return f"converted {name}"
    if status.state is JobState.FAILED:
        return f"converting {name} failed"
    if status.state is JobState.STOPPED:
        return f"converting {name}: stopped"
    if status.state is JobState.STOPPING:
        return f"converting {name}: stopping"
    return f"converting {name}: {format_phase(status)}"


def format_preview(preview: Preview, options: ConvertOptions) -> list[str]:
    """A preview in lines: shape, bytes, memory, speed, remarks."""
    room = "" if preview.disk_bytes <= preview.free_bytes else ": too little"
    lines = [
        f"{preview.features}, in {preview.encoding}",
        f"on disk about {format_bytes(preview.disk_bytes)}, {format_bytes(preview.free_bytes)}"
        f" free{room}",
    ]
    if preview.seconds is not None:
        why = f", {preview.seconds_origin}" if preview.seconds_origin else ""
        lines.append(f"takes about {format_duration(preview.seconds)}{why}")
    needs, ceiling = preview.smallest_ceiling_bytes, preview.ceiling_bytes
    if needs is not None:
        lines.append(f"needs {format_least_memory(needs, preview.application_bytes)}")
        if ceiling is not None and needs > ceiling:
            lines.append(f"more than the {format_ceiling(ceiling)} it would get")
    if preview.tokens_per_second is not None and ceiling is not None:
        speed = format_speed(preview.tokens_per_second)
        quick = ", by a quick profile" if preview.quick else ""
        lines.append(f"about {speed} tokens/s expected in {format_ceiling(ceiling)}{quick}")
        if preview.assumed:
            lines.append(f"assumed: {preview.assumed}")
    if options.predictors != NO_PREDICTORS:
        lines.append("lossy: predictors may leave out neurons that are not zero")
    elif not preview.sparse:
        lines.append("no neuron of it is ever zero: every token needs all of them")
    if options.dtype in GROUP_BYTES:
        lines.append(f"lossy: weights are rounded to {options.dtype}")
    if options.requantise:
        lines.append("lossy: what was rounded before may be again; the model says so ever after")
    if options.predictors == TRAIN:
        lines.append("training takes long; stopped, it goes on another time")
    return lines
