"""Finds what is outdated in a profile, tells the user, and leaves it out where it would mislead.

A kept profile of another device or version is not used at all. If processor, CPUs or instruction
set differ, its reads are used, since they are the disk's, but not its rates of memory and kernels.
Age and the back-end of the reads only cause a caution. A file that was asked for is used as it is:
it may plan for another machine.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from dataclasses import replace
from pathlib import Path

from flashllm import core
from flashllm.errors import FlashllmError
from flashllm.hardware.device import describe_device, machine_name
from flashllm.hardware.machine_profile import Profile, cache_path, failed_lately, find, load
from flashllm.options import ModelOptions

DAYS_MOST = 90
ADVICE = "measure again with `flashllm bench io`"


def current_isa() -> str:
    """The instruction set of this process's kernels; "" if unknown."""
    with contextlib.suppress(ValueError):  # FLASHLLM_ISA asks for what this processor has not
        kernels = core.Kernels(threads=1)
        try:
            return str(kernels.isa)
        finally:
            kernels.close()
    return ""


def current_backend() -> str:
    """The back-end of reads: threads or uring; a refused uring is reported elsewhere."""
    return "threads" if core.IO_BACKEND == "auto" else core.IO_BACKEND


def other_machine(profile: Profile) -> list[str]:
    """A sentence about how the machine differs from the measured one; "" if it does not."""
    found = []
    then, now = (_without_memory(name) for name in (profile.machine_name, machine_name()))
    if then != now:
        found.append(f"on another processor or with other CPUs ({then}; here {now})")
    isa = current_isa()
    if profile.isa and isa and profile.isa != isa:
        found.append(f"with kernels for {profile.isa} (here {isa})")
    return found


def staleness(profile: Profile, now: dt.datetime | None = None) -> list[str]:
    """Sentences about everything that makes a profile doubtful on this machine."""
    found = other_machine(profile)
    if not profile.isa:
        found.append("by an earlier version, which did not note the kernels' instruction set")
    backend = current_backend()
    if profile.io_backend and profile.io_backend != backend:
        found.append(f"with reads by {profile.io_backend} (here by {backend})")
    days = _age_days(profile.date, now or dt.datetime.now(dt.UTC))
    if days is None:
        found.append(f"at a date that is none ({profile.date[:40]!r})")
    elif days > DAYS_MOST:
        found.append(f"{days} days ago")
    elif days < -1:
        found.append(f"at a date that is still to come ({profile.date[:40]})")
    return found


def for_this_machine(profile: Profile) -> Profile:
    """A kept profile without the rates of another machine."""
    return replace(profile, rates=None) if other_machine(profile) else profile


def find_profile(directory: Path, file: Path | None = None) -> Profile | None:
    """The profile in a file, or else the kept one of the device of `directory`.

    `ProfileError` if the file is not valid. An invalid kept profile is ignored, and so are its
    rates of memory and kernels if they are another machine's.
    """
    if file is not None:
        return load(file)
    kept = find(directory)
    return kept and for_this_machine(kept)


def profile_for(directory: Path, options: ModelOptions) -> Profile | None:
    """The profile for planning a model with these options; None if there is none.

    Kept profiles do not describe reads through the page cache: for these only a file counts.
    """
    file = None if options.profile is None else Path(options.profile)
    return find_profile(directory, file) if options.direct or file is not None else None


def wants_quick_profile(directory: Path) -> bool:
    """Whether a quick profile of the device of `directory` would tell more than what is kept.

    It would where nothing is kept, or a quick one that is stale or knows the disk alone, unless it
    failed lately. What `flashllm bench io` has measured is never replaced.
    """
    kept = find(directory)
    if kept is not None and not (kept.quick and (kept.rates is None or staleness(kept))):
        return False
    return not failed_lately(directory)


def caution(path: Path, file: Path | None = None) -> str:
    """One sentence on what is doubtful about the profile for `path`; "" if nothing is.

    The profile is that in `file`, or else the kept one of the device, if there is one.
    """
    if file is not None:
        return _file_caution(path, file)
    device = describe_device(path)
    place = cache_path(device)
    if not os.path.exists(place):
        return ""
    try:
        profile = load(place)
    except FlashllmError as problem:
        return f"what was measured of {device.name} is not used: {problem}"
    if profile.device.key != device.key:
        return f"{place}: is of another device, {profile.device.name}, and is not used; {ADVICE}"
    words = staleness(profile)
    if not words:
        return ""
    left_out = profile.rates is not None and other_machine(profile)
    used = "only its reads are used" if left_out else "it is used all the same"
    return f"the profile of {device.name} was measured {', '.join(words)}; {used}; {ADVICE}"


def _file_caution(path: Path, file: Path) -> str:
    profile, here = load(file), describe_device(path)
    words = staleness(profile)
    if profile.device.key != here.key:
        words = [f"of {profile.device.name}, and {path} lies on {here.name}", *words]
    if not words:
        return ""
    return f"{file} was measured {', '.join(words)}; it is used all the same"


def _without_memory(machine: str) -> str:
    """The processor and the number of CPUs: memory differs by what the system keeps of it."""
    return machine.rpartition(", ")[0] or machine


def _age_days(date: str, now: dt.datetime) -> int | None:
    """Whole days since a time in ISO 8601; None if it is not one."""
    try:
        then = dt.datetime.fromisoformat(date)
    except ValueError:
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=dt.UTC)
    return (now - then).days
