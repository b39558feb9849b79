"""What `flashllm doctor` says: a line for each thing, ok or not, and the command that mends it."""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from flashllm.units import GIB, format_bytes, format_ceiling, format_rate, format_speed
from flashllm.untrusted.terminal import sanitize_line

Level = Literal["ok", "warning", "error"]
WIDTH, LEVEL_WIDTH, TOPIC_WIDTH = 100, 9, 10
OLD_KERNEL_CALL = "unset FLASHLLM_ISA"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    level: Level
    topic: str
    what: str
    """A sentence without its full stop."""
    do: str = ""
    """What to do, a command where one does it; "" where there is nothing to do."""
    is_command: bool = False
    """Whether `do` can be typed as it is."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def find_checks(facts: dict[str, Any]) -> list[Check]:
    """Everything that the facts lead to, in the order of their sections."""
    found = [*_core(facts["core"]), *_memory(facts["memory"]), *_settings(facts.get("settings"))]
    cache, model = facts["cache"], facts.get("model")
    found += _place(cache, is_model=False)
    if model is None or model.get("device_name") != cache.get("device_name"):
        found += _profile(cache, is_model=False)
    if model is not None:
        found += [*_place(model, is_model=True), *_profile(model, is_model=True)]
    found += _packages(facts["versions"])
    if facts.get("plan") is not None:
        found += _plan(facts["plan"], facts["model"]["directory"])
    return list(dict.fromkeys(found))


def warning_texts(checks: Sequence[Check]) -> list[str]:
    """What is not ok, each as one sentence: the key `warnings` of the JSON."""
    texts = []
    for check in checks:
        if check.level != "ok":
            do = f"`{check.do}`" if check.is_command else check.do
            texts.append(f"{check.what}; {do}" if do else check.what)
    return list(dict.fromkeys(texts))


def format_checks(checks: Sequence[Check]) -> str:
    """Lines for a terminal, and a last one that sums them up."""
    lines: list[str] = []
    for check in checks:
        begin = f"{check.level:<{LEVEL_WIDTH}}{check.topic:<{TOPIC_WIDTH}}"
        indent = " " * len(begin)
        text = sanitize_line(check.what)
        lines += textwrap.wrap(
            text,
            WIDTH,
            initial_indent=begin,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        if check.do:
            mark = "$ " if check.is_command else ""
            lines.append(f"{indent}{mark}{sanitize_line(check.do)}")
    return "".join(f"{line}\n" for line in [*lines, "", _summary(checks)])


def _summary(checks: Sequence[Check]) -> str:
    errors = sum(check.level == "error" for check in checks)
    warnings = sum(check.level == "warning" for check in checks)
    if not errors and not warnings:
        return "Nothing to worry about."
    counts = [(errors, "error"), (warnings, "warning")]
    named = [f"{count} {name}{'s' * (count > 1)}" for count, name in counts if count]
    return f"{' and '.join(named)}; the line below each says what to do."


def _core(core: dict[str, Any]) -> Iterator[Check]:
    if core["problem"]:
        yield Check("error", "core", core["problem"], OLD_KERNEL_CALL, is_command=True)
    elif core["name"] != "native":
        yield Check(
            "warning",
            "core",
            f"the native core is not in use ({core['fallback']}): everything is slow",
            "pip install --force-reinstall flashllm",
            is_command=True,
        )
    elif core["isa"] == "scalar":
        yield Check(
            "warning",
            "core",
            "the kernels use no vector instructions (scalar): everything is slow",
            "unset FLASHLLM_ISA if it is set",
        )
    else:
        yield Check("ok", "core", f"native, with kernels for {core['isa']}")
    if sys.maxsize < 1 << 32:
        yield Check("error", "python", "this Python has 32 bits", "install one of 64 bits")


def _memory(memory: dict[str, Any]) -> Iterator[Check]:
    free = format_bytes(memory["available_bytes"])
    if memory["available_bytes"] < GIB:
        what = f"only {free} of memory are available"
        yield Check("warning", "memory", what, "close programs, or give --memory")
    else:
        total = memory.get("total_bytes")
        of = f" of {format_bytes(total)}" if total else ""
        yield Check("ok", "memory", f"{free}{of} are available")


def _settings(settings: dict[str, Any] | None) -> Iterator[Check]:
    if settings is None:
        return
    if settings["problem"]:
        yield Check("error", "settings", settings["problem"], "flashllm config edit", True)
    else:
        yield Check("ok", "settings", f"{settings['file']} and the environment")


def _place(place: dict[str, Any], is_model: bool) -> Iterator[Check]:
    directory, topic = place["directory"], "model" if is_model else "disk"
    trouble = list(_place_troubles(place, topic, is_model))
    if not any(check.level != "ok" for check in trouble):
        free = format_bytes(place["free_bytes"])
        where = f"{place['filesystem'] or 'a file system'} on {place.get('device_name', 'a disk')}"
        yield Check("ok", topic, f"{directory}: direct I/O on {where}, {free} free")
    yield from trouble


def _place_troubles(place: dict[str, Any], topic: str, is_model: bool) -> Iterator[Check]:
    directory = place["directory"]
    if place["direct"] is False:
        yield Check(
            "warning",
            topic,
            f"{directory}: no direct I/O ({place['fallback']}); reads fill the cache",
            "keep models on a local disk with ext4, xfs or btrfs",
        )
    elif place["direct"] is None and not is_model:
        what = f"{directory}: {place['fallback']}"
        yield Check("error", topic, what, "set FLASHLLM_HOME to another directory")
    elif place["direct"] is None:
        what = f"{directory}: {place['fallback']}"
        yield Check("error", topic, what, "is it a converted model? `flashllm ls` lists models")
    if place["network"]:
        what = f"{directory}: a network file system ({place['filesystem']})"
        yield Check("warning", topic, what, "copy the model to a local disk")
    if place["usb"]:
        what = f"{directory}: a USB device"
        yield Check("warning", topic, what, "an internal one is several times faster")
    if place["rotational"]:
        yield Check(
            "warning",
            topic,
            f"{directory}: the device says that it is a spinning disk; if it is, random reads"
            " crawl",
            "keep models on an SSD",
        )
    if place["free_bytes"] < GIB:
        what = f"{directory}: only {format_bytes(place['free_bytes'])} are free"
        yield Check("warning", topic, what, "make room before converting a model")


def _profile(place: dict[str, Any], is_model: bool) -> Iterator[Check]:
    """What is known of the disk."""
    target = f" {shlex.quote(place['directory'])}" if is_model else ""
    name = place.get("device_name", "this disk")
    profile = place.get("profile")
    if place["profile_problem"]:
        # It names the device and how to measure again.
        yield Check("warning", "profile", place["profile_problem"])
    elif profile is None and "profile" in place:
        yield Check(
            "warning",
            "profile",
            f"{name} was not measured, so speeds are unknown",
            f"flashllm bench io --quick{target}",
            is_command=True,
        )
    elif profile is not None:
        rate = format_rate(profile["sequential_bytes_per_second"])
        kind = "a quick profile" if profile["quick"] else "measured"
        lacks = "" if profile["has_machine_rates"] else "; memory and kernels were not measured"
        words = f"{name}: {kind} of {profile['date'][:10]}, {rate} in large reads{lacks}"
        yield Check("ok", "profile", words)


def _packages(versions: dict[str, str | None]) -> Iterator[Check]:
    missing = [name for name, version in versions.items() if version is None]
    if not versions:
        what = "flashllm itself is not installed"
        yield Check("warning", "packages", what, "run `pip install .` in its folder")
    elif missing:
        what = f"not installed: {', '.join(missing)}"
        yield Check("error", "packages", what, "pip install flashllm", is_command=True)
    else:
        named = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield Check("ok", "packages", named)


def _plan(plan: dict[str, Any], directory: str) -> Iterator[Check]:
    """Whether a model fits this machine, how fast it would be, and whether it was verified."""
    place = shlex.quote(directory)
    if plan["problem"]:
        if plan["is_checkpoint"]:
            what = f"{directory}: a checkpoint, which has to be converted first"
            do = f"flashllm convert {place} {place}.flash --dry-run"
            yield Check("error", "model", what, do, is_command=True)
        else:
            what = f"{directory}: cannot be opened: {plan['problem']}"
            yield Check("error", "model", what, "convert it again")
        return
    yield from _fit(plan, place)
    yield from _speed(plan, place)
    for remark in plan["remarks"]:
        yield Check("ok", "model", remark)
    if plan["verified"]:
        yield Check("ok", "verified", f"every byte was checked on {plan['verified'][:10]}")
    else:
        what = "not read through since it was written; weights are checked when they are first read"
        yield Check("ok", "verified", what, f"flashllm verify {place}", is_command=True)


def _fit(plan: dict[str, Any], place: str) -> Iterator[Check]:
    needs, ceiling = plan["smallest_ceiling_bytes"], plan["ceiling_bytes"]
    if needs is None or ceiling is None:
        yield Check("warning", "fit", "the memory of a process could not be measured here")
        return
    gets = "the given" if plan["is_ceiling_given"] else "the available"
    size = f"{format_bytes(plan['size_bytes'])} on disk, " if plan["size_bytes"] else ""
    what = f"{size}needs {format_ceiling(needs)} of memory at least"
    if plan["fits"]:
        yield Check("ok", "fit", f"{what} and would get {format_ceiling(ceiling)}, {gets}")
        return
    yield Check(
        "error",
        "fit",
        f"{what}, more than the {format_ceiling(ceiling)} that it would get",
        f"flashllm plan {place} --memory {-(-needs >> 20)}MiB",
        is_command=True,
    )


def _speed(plan: dict[str, Any], place: str) -> Iterator[Check]:
    speed = plan["tokens_per_second"]
    if speed is None:
        if plan["fits"]:
            what = "how fast it would be is unknown, since disk and machine were not measured"
            yield Check("warning", "speed", what, f"flashllm bench io --quick {place}", True)
        return
    by = "a quick profile" if plan["quick"] else "the profile"
    assumed = f"; assumed: {plan['assumed']}" if plan["assumed"] else ""
    ceiling = format_ceiling(plan["ceiling_bytes"])
    what = f"about {format_speed(speed)} tokens a second in {ceiling}, by {by}{assumed}"
    yield Check("ok", "speed", what)
