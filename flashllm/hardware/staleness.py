"""What is no longer true of a profile: said to the user, and left out where it would mislead.

A kept profile is not used at all where its device is another one, or its version. Where processor,
CPUs or instruction set are others, its reads are used, since they are the disk's, but not its rates
of memory and kernels. Age and what makes the reads only call for a caution. A file that was asked
for is used as it is: it may plan for another machine.
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
from flashllm.hardware.machine_profile import Profile, cache_path, find, load
from flashllm.options import ModelOptions

DAYS_MOST = 90
ADVICE = "measure again with `flashllm bench io`"


def current_isa() -> str:
    """The instructions that the kernels of this process use; "" where it cannot be told."""
    with contextlib.suppress(ValueError):  # FLASHLLM_ISA asks for what this processor has not
        kernels = core.Kernels(threads=1)
        try:
            return str(kernels.isa)
        finally:
            kernels.close()
    return ""


def current_backend() -> str:
    """What makes the reads: threads or uring; where uring is refused, it says so elsewhere."""
    return "threads" if core.IO_BACKEND == "auto" else core.IO_BACKEND


def other_machine(profile: Profile) -> list[str]:
    """How the machine differs from the one measured, in words; empty where it does not."""
    found = []
    then, now = (_without_memory(name) for name in (profile.machine_name, machine_name()))
    if then != now:
        found.append(f"on another processor or with other CPUs ({then}; here {now})")
    isa = current_isa()
    if profile.isa and isa and profile.isa != isa:
        found.append(f"with kernels for {profile.isa} (here {isa})")
    return found


def staleness(profile: Profile, now: dt.datetime | None = None) -> list[str]:
    """All that makes a profile doubtful on this machine, each in words."""
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
    """A kept profile without what another machine gave."""
    return replace(profile, rates=None) if other_machine(profile) else profile


def find_profile(directory: Path, file: Path | None = None) -> Profile | None:
    """The profile in a file, or else the one that is kept of the device that `directory` is on.

    `ProfileError` where the file is none. The kept one is no setting: it is left out where bad, and
    so are its rates of memory and kernels where they are another machine's.
    """
    if file is not None:
        return load(file)
    kept = find(directory)
    return kept and for_this_machine(kept)


def profile_for(directory: Path, options: ModelOptions) -> Profile | None:
    """The profile that plans for a model go by, as its options say; None where there is none.

    Reads through the page cache are not those that were measured: only a file counts for them.
    """
    file = None if options.profile is None else Path(options.profile)
    return find_profile(directory, file) if options.direct or file is not None else None


def caution(path: Path, file: Path | None = None) -> str:
    """One sentence on the profile that plans for `path` go by; "" where all is well.

    It is that in `file`, or else the kept one of the device; where none is kept, all is well.
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
    """Whole days since a moment in ISO 8601; None where it is none."""
    try:
        then = dt.datetime.fromisoformat(date)
    except ValueError:
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=dt.UTC)
    return (now - then).days
