"""Texts about what a conversion would make, and about its progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashllm.library.conversion_job import ConvertJob, JobState, JobStatus
from flashllm.library.conversion_options import NO_PREDICTORS, TRAIN, ConvertOptions
from flashllm.library.formatting import clean, format_least_memory
from flashllm.units import format_bytes, format_ceiling, format_speed

if TYPE_CHECKING:
    from flashllm.library.conversion_preview import Preview


def format_duration(seconds: float) -> str:
    """`12 s`, `3 min`, `1 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_phase(status: JobStatus) -> str:
    """`feed-forward bundles: 34 %, 12 s left`."""
    if not status.phase:
        return "beginning"
    words = f"{status.phase}: {100 * status.share:.0f} %"
    left = status.seconds_left
    return words if left is None else f"{words}, {format_duration(left)} left"


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
    needs, ceiling = preview.smallest_ceiling_bytes, preview.ceiling_bytes
    if needs is not None:
        lines.append(f"needs {format_least_memory(needs, preview.application_bytes)}")
        if ceiling is not None and needs > ceiling:
            lines.append(f"more than the {format_ceiling(ceiling)} it would get")
    if preview.tokens_per_second is not None and ceiling is not None:
        speed = format_speed(preview.tokens_per_second)
        lines.append(f"about {speed} tokens/s expected in {format_ceiling(ceiling)}")
        if preview.assumed:
            lines.append(f"assumed: {preview.assumed}")
    if options.predictors != NO_PREDICTORS:
        lines.append("lossy: predictors may leave out neurons that are not zero")
    elif not preview.sparse:
        lines.append("no neuron of it is ever zero: every token needs all of them")
    if options.dtype in ("int8", "int4"):
        lines.append(f"lossy: weights are rounded to {options.dtype}")
    if options.predictors == TRAIN:
        lines.append("training takes long; stopped, it goes on another time")
    return lines
