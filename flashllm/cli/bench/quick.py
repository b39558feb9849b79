"""`flashllm bench io --quick`: a quick profile in some seconds; --background waits for answers."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flashllm.cli.bench.disk_report import write_json, write_text
from flashllm.cli.shared.output import Output, Ticker, remark
from flashllm.errors import (
    BenchmarkInvalid,
    FlashllmError,
    ProfileError,
    UsageError,
)
from flashllm.progress import JsonlProgress, Progress, SilentProgress
from flashllm.units import MIB, format_bytes

DISK_MEMORY_BYTES = 120 * MIB
"""Memory of this process while it reads: 74 MiB, of which it reads into 32."""
MACHINE_MEMORY_BYTES = 320 * MIB
"""The same while it measures kernels: 250 MB, half of them MATRIX_BYTES."""
MATRIX_BYTES = 128 * MIB
IDLE_NICENESS = 19


class _OtherMeasuresError(BenchmarkInvalid):
    """No failure: what is wanted is on its way."""


def bench_quick(arguments: argparse.Namespace) -> int:
    """Samples the disk and this machine, keeps the quick profile, and reports it."""
    from flashllm.hardware.machine_profile import note_failure

    _check(arguments)
    try:
        return _bench_quick(arguments)
    except FlashllmError as error:
        is_failure = not isinstance(error, _OtherMeasuresError)
        if is_failure and arguments.background and arguments.target is not None:
            note_failure(arguments.target)
        raise


def _bench_quick(arguments: argparse.Namespace) -> int:
    from flashllm.bench.disk.quick import GiveWay, make_quick_profile

    if arguments.background:
        _become_idle()
    target, settings = _prepare(arguments)
    with contextlib.ExitStack() as stack:
        way, progress = GiveWay(), _progress(arguments)
        if arguments.background:
            way = GiveWay(stack.enter_context(_alone()))
        stack.callback(progress.finish)
        remarks = [*target.remarks]
        sweep = _sweep(target, settings, way, progress)
        profile = make_quick_profile(target, sweep, _earlier_rates(target.device))
        kept = _keep(profile, arguments, remarks)  # at once: the rest may be interrupted
        rates = None if arguments.no_machine else _rates(arguments, way, progress, remarks)
        if rates is not None:
            profile = make_quick_profile(target, sweep, rates)
            kept = _keep(profile, arguments, [])
    if not arguments.background:
        _report(arguments, target, settings, sweep, profile, remarks, kept)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    for name in ("sizes", "threads", "plot"):
        if getattr(arguments, name) is not None:
            raise UsageError(f"--{name}: a quick profile has its own; leave it out, or --quick")
    if arguments.background and (arguments.json or arguments.profile_file):
        raise UsageError("--background: only keeps the profile; leave --json and --profile out")


def _prepare(arguments: argparse.Namespace) -> tuple[Any, Any]:
    from flashllm import core
    from flashllm.bench.disk.quick import quick_settings
    from flashllm.bench.disk.target import find_target
    from flashllm.cli.shared.open_model import model_directory
    from flashllm.library.quick_target import quick_target
    from flashllm.system.filesystem import find_block_device, is_rotational
    from flashllm.system.memory_limit import available_bytes

    if core.NAME != "native":
        raise UsageError(
            f"bench io needs the native core ({core.FALLBACK}): its numpy twin reads one at a time"
        )
    path = arguments.target if arguments.target is not None else model_directory(None)
    # Where the disk is known, only the rest is worth it.
    needed = MACHINE_MEMORY_BYTES if _knows_disk(path) else DISK_MEMORY_BYTES
    needed += arguments.leave or 0
    if arguments.background and available_bytes() < needed:
        raise BenchmarkInvalid(
            f"less than {format_bytes(needed)} of memory are left, so nothing is measured now"
        )
    target = find_target(quick_target(path))
    rotates = is_rotational(find_block_device(target.path))
    return target, quick_settings(target, is_rotational=bool(rotates))


def _knows_disk(path: Path) -> bool:
    """Whether the quick profile that is kept of the disk is still true."""
    from flashllm.hardware.machine_profile import find
    from flashllm.hardware.staleness import staleness

    kept = find(path)
    return kept is not None and kept.quick and not staleness(kept)


def _progress(arguments: argparse.Namespace) -> Progress:
    return JsonlProgress(sys.stderr) if arguments.background else SilentProgress()


def _become_idle() -> None:
    """The lowest priority for processors and disk; for memory, the first to be killed."""
    import psutil

    process = psutil.Process()
    with contextlib.suppress(OSError, psutil.Error):
        process.nice(IDLE_NICENESS)
    with contextlib.suppress(OSError, psutil.Error, AttributeError):
        process.ionice(psutil.IOPRIO_CLASS_IDLE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", "ascii")


@contextlib.contextmanager
def _alone() -> Iterator[Callable[[], bool]]:
    """Yields what tells whether an engine answers; `BenchmarkInvalid` if another one measures."""
    from flashllm.system.paths import cache_dir
    from flashllm.system.right_of_way import RightOfWay

    try:
        way = RightOfWay()
        lock = os.open(cache_dir() / "profiles" / "quick.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise BenchmarkInvalid(
            f"{error.filename}: cannot be written ({error.strerror}), so nothing is measured"
        ) from error
    with way:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise _OtherMeasuresError("another process is measuring already") from error
        else:
            yield way.is_taken
        finally:
            os.close(lock)


def _sweep(target: Any, settings: Any, way: Any, progress: Progress) -> Any:
    from flashllm.bench.disk.quick import run_quick

    ticker = Ticker()
    points = len(settings.places) * settings.runs
    progress.start("measuring the disk", points)
    seen = 0

    def on_point(done: int, _: int) -> None:
        nonlocal seen
        progress.advance(min(done, points) - seen)
        seen = min(done, points)
        ticker.show(f"a quick look at {target.device.name}: {seen} of {points} points")

    try:
        return run_quick(target, settings, way, on_point)
    finally:
        ticker.clear()


def _earlier_rates(device: Any) -> Any:
    """The rates of this machine in the quick profile that is kept, if they are still true.

    They stay where there is no memory to measure them again.
    """
    from flashllm.hardware import machine_profile as profiles
    from flashllm.hardware.staleness import staleness

    with contextlib.suppress(ProfileError):
        known = profiles.load(profiles.quick_path(device))
        if not staleness(known):
            return known.rates
    return None


def _rates(arguments: Any, way: Any, progress: Progress, remarks: list[str]) -> Any:
    """Rates of memory and kernels; None, and a remark why, where they cannot be measured."""
    from flashllm.system.memory_limit import available_bytes

    needed = MACHINE_MEMORY_BYTES + (arguments.leave or 0)
    if available_bytes() < needed:
        remarks.append(
            f"memory and kernels were not measured: less than {format_bytes(needed)} are left"
        )
        return None
    from flashllm.bench.tokens.machine_rates import demo_model, measure_rates

    ticker = Ticker()
    begun = False

    def before_each(done: int, pieces: int) -> None:
        nonlocal begun
        if not begun:
            progress.start("measuring memory and kernels", pieces)
            begun = True
        elif done:
            progress.advance(1)
        ticker.show(f"memory and kernels: {done} of {pieces}")
        way.wait()

    demo = _converted_demo if arguments.background else demo_model
    try:
        return measure_rates(bytes_most=MATRIX_BYTES, demo=demo, before_each=before_each)
    except (FlashllmError, MemoryError) as error:
        why = "out of memory" if isinstance(error, MemoryError) else error
        remarks.append(f"memory and kernels were not measured: {why}")
        return None
    finally:
        ticker.clear()


def _converted_demo() -> Path | None:
    """The demo where it is converted already: in the background nothing but the profile is made."""
    from flashllm.flash.demo_places import demo_directory, is_made

    with contextlib.suppress(FlashllmError):
        directory = demo_directory()
        return directory if is_made(directory) else None
    return None


def _keep(profile: Any, arguments: argparse.Namespace, remarks: list[str]) -> Path | None:
    """Writes the profile to the file given, or to the cache unless the disk was measured well."""
    from flashllm.hardware import machine_profile as profiles

    if arguments.profile_file is not None:
        return profiles.save(profile, arguments.profile_file)
    place = profiles.cache_path(profile.device)
    with contextlib.suppress(ProfileError):
        known = profiles.load(place)
        if known.device.key == profile.device.key:
            remarks.append(
                f"{place}: was measured by `flashllm bench io` on {known.date[:10]}, so the quick"
                " profile is not kept; --profile writes it elsewhere"
            )
            return None
    return profiles.save(profile)


def _report(
    arguments: argparse.Namespace,
    target: Any,
    settings: Any,
    sweep: Any,
    profile: Any,
    remarks: list[str],
    kept: Path | None,
) -> None:
    if arguments.json:
        write_json(arguments, target, sweep, profile, remarks, kept, interrupted=False)
    else:
        write_text(target, settings, sweep, profile, kept, interrupted=False)
        if kept is not None:
            Output().write("a quick profile: `flashllm bench io` measures well, and replaces it\n")
    for text in remarks:
        remark(text)
