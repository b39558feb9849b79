"""Costs as text for people: parts of a token's time, shares of a memory ceiling."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from flashllm.units import GIB, MIB, format_bytes, format_rate

if TYPE_CHECKING:
    from flashllm.planning.device_plan import DevicePlan
    from flashllm.planning.plan import Plan


PART_WORDS = {
    "io_exposed": "waiting for flash",
    "predict": "predicting",
    "plan": "planning reads",
    "manage": "managing slots",
    "attention": "attention",
    "ffn": "feed-forward",
    "head": "head",
    "sample": "sampling",
    "other": "other",
}
"""Labels of the parts of a token's time."""
PART_GROUPS = {
    "compute": ("attention", "ffn", "head"),
    "choose": ("predict", "plan", "manage"),
    "flash": ("io_exposed",),
    "rest": ("sample", "other"),
}
"""Groups of parts, for displays with little space."""


def format_share_of_profile(rate: float, allowed: float | None, profile: str = "profile") -> str:
    """`83 % of the profile's 3.5 GB/s`; without a profile, how to get one."""
    if not allowed:
        return "what it allows is unknown: run `flashllm bench io --quick`"
    return f"{100 * rate / allowed:.0f} % of the {profile}'s {format_rate(allowed)}"


def format_parts(parts: Iterable[tuple[str, float]], least: float = 0.005) -> str:
    """Parts of a time in percent, the largest first, those under `least` left out."""
    shares = sorted(((ns, name) for name, ns in parts), reverse=True)
    total = sum(ns for ns, _ in shares) or 1
    return ", ".join(
        f"{PART_WORDS[name]} {100 * ns / total:.0f} %" for ns, name in shares if ns >= least * total
    )


def format_split(plan: Plan) -> tuple[list[tuple[str, str]], str]:
    """Components of the ceiling with their sizes, the largest first, and the unit.

    Empty components are left out.
    """
    parts = sorted(plan.split.items(), key=lambda part: -part[1])
    large = parts[0][1] >= 10 * GIB
    unit, factor, digits = ("GiB", GIB, 1) if large else ("MiB", MIB, 0)
    return [(name, f"{size / factor:.{digits}f}") for name, size in parts if size], unit


def format_device(placed: DevicePlan) -> str:
    """What lies on a device, and its shares: `cuda: matrices 2.00 GiB, ...`."""
    parts = ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in placed.split.items())
    of = format_bytes(placed.memory_bytes)
    return f"{placed.name}: {parts}, of {of}; {format_shares(placed)}"


def format_shares(placed: DevicePlan) -> str:
    """Shares of a model on a device, beside those that its memory would have room for."""
    found, wanted = placed.realised, placed.requested
    return (
        f"{found.wg:.0%} of the weights (room for {wanted.wg:.0%}), {found.cg:.0%} of keys and"
        f" values ({wanted.cg:.0%}), {found.hg:.0%} of activations"
    )
