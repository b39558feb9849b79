"""`flashllm bench io`: what the disk gives, size by size and thread by thread."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

from flashllm.cli.bench.disk_report import write_json, write_text
from flashllm.cli.shared import open_model
from flashllm.cli.shared.output import Ticker, remark
from flashllm.errors import (
    EXIT_INTERRUPTED,
    BenchmarkInvalid,
    CannotCreate,
    FlashllmError,
    ProfileError,
    UsageError,
)
from flashllm.units import format_bytes


def bench_io(arguments: argparse.Namespace) -> int:
    """Sweeps, keeps the profile, and reports; exit code 130 with a partial report if interrupted.

    74 if the machine was too busy for the profile to be kept: scripts may try again.
    """
    if arguments.quick or arguments.background:
        from flashllm.cli.bench.quick import bench_quick

        return bench_quick(arguments)
    if arguments.target is None:
        raise UsageError("bench io: what to read is missing; give a converted model or a file")
    from flashllm.bench.disk.fit import reason_to_doubt
    from flashllm.bench.disk.sweep import make_profile

    target, settings = _prepare(arguments)
    sweep = _sweep(target, settings)
    interrupted = not sweep.complete
    rates = None
    if not interrupted and not arguments.no_machine:
        rates, interrupted = _rates()
    profile = make_profile(target, sweep, rates)
    remarks = [*target.remarks, *_remarks(sweep, settings, arguments.no_fio, interrupted)]
    doubtful = reason_to_doubt(profile)
    is_refused = bool(doubtful) and not (arguments.profile_file or arguments.keep_doubtful)
    if doubtful:
        remarks.append(doubtful + (_why_refused(profile.device) if is_refused else ""))
    kept: Path | None = None
    problem: CannotCreate | None = None
    try:
        kept = None if is_refused else _keep(profile, arguments.profile_file, remarks)
    except CannotCreate as error:  # no reason to lose what took minutes to measure
        problem = error
    if arguments.json:
        write_json(arguments, target, sweep, profile, remarks, kept, interrupted)
    else:
        write_text(target, settings, sweep, profile, kept, interrupted)
    for text in remarks:
        remark(text)
    _draw(arguments.plot, profile, sweep.pass_ratios())
    if problem is not None:
        raise problem
    if interrupted:
        return EXIT_INTERRUPTED
    return BenchmarkInvalid.exit_code if is_refused else 0


def _remarks(sweep: Any, settings: Any, no_fio: bool, interrupted: bool) -> list[str]:
    """Remarks on what the figures lack."""
    found = []
    if not sweep.proven:
        found.append("this system does not tell what devices were asked for: nothing is proven")
    if settings.fio is None and not no_fio:
        found.append("fio is not installed, so nothing stands beside")
    if sweep.fio_problem:
        found.append(sweep.fio_problem)
    if interrupted:
        found.append("interrupted: these are the figures until then")
    return found


def _prepare(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """The target and the settings; everything is checked before any long work."""
    from flashllm import core
    from flashllm.bench.disk.fio import find_fio
    from flashllm.bench.disk.sweep import Settings
    from flashllm.bench.disk.target import choose_sizes, choose_threads, find_target

    if arguments.plot is not None:
        from flashllm.predictors.evaluation import plots

        plots.require_matplotlib()
        plots.make_directory(arguments.plot)
    if core.NAME != "native":
        raise UsageError(
            f"bench io needs the native core ({core.FALLBACK}): its numpy twin reads one at a time"
        )
    target = find_target(open_model.file_or_model(arguments.target))
    sizes, left_out = choose_sizes(target, arguments.sizes)
    if left_out:
        remark(left_out)
    threads = choose_threads(arguments.threads)
    fio = None if arguments.no_fio else find_fio()
    return target, Settings(sizes, threads, arguments.seconds, arguments.runs, fio)


def _sweep(target: Any, settings: Any) -> Any:
    from flashllm.bench.disk.sweep import run_sweep

    ticker = Ticker()
    try:
        return run_sweep(target, settings, ticker.show)
    finally:
        ticker.clear()


def _rates() -> tuple[Any, bool]:
    """Rates of memory and kernels, and whether measuring them was interrupted."""
    from flashllm.bench.tokens.machine_rates import measure_rates

    ticker = Ticker()
    ticker.show("memory and kernels")
    try:
        return measure_rates(), False
    except KeyboardInterrupt:
        return None, True
    except (FlashllmError, MemoryError) as error:
        why = "out of memory" if isinstance(error, MemoryError) else error
        remark(f"memory and kernels were not measured: {why}")
        return None, False
    finally:
        ticker.clear()


def _keep(profile: Any, path: Path | None, remarks: list[str]) -> Path | None:
    """Writes the profile to the file given, or to the cache unless a better one is there."""
    from flashllm.hardware import machine_profile as profiles
    from flashllm.options import DEFAULT_IO_THREADS

    if path is not None:
        return profiles.save(profile, path)
    most_threads = max(point.threads for point in profile.points)
    if most_threads < DEFAULT_IO_THREADS:
        # A plan would take the largest measured number of threads for the best, and use too few.
        remarks.append(
            f"the profile is not kept: of more threads than {most_threads} it knows nothing, and a"
            f" plan chooses by it; measure with --threads up to {DEFAULT_IO_THREADS} at least, or"
            " give --profile FILE"
        )
        return None
    known = _known(profile.device)
    reason = _why_worse(profile, known) if known is not None else ""
    if reason:
        place = profiles.cache_path(profile.device)
        remarks.append(f"{place}: is kept as it is, since {reason}; --profile writes elsewhere")
        return None
    return profiles.save(profile)


def _known(device: Any) -> Any:
    """The profile of a device that is already kept, or None."""
    from flashllm.hardware import machine_profile as profiles

    with contextlib.suppress(ProfileError):
        known = profiles.load(profiles.cache_path(device))
        return known if known.device.key == device.key else None
    return None


def _why_refused(device: Any) -> str:
    """A sentence about why a doubtful profile is not kept, and what to do."""
    from flashllm.options import DEFAULT_IO_THREADS
    from flashllm.planning.ways_to_read import GAP_BYTES

    known = _known(device)
    in_use = f"the defaults ({DEFAULT_IO_THREADS} threads, gaps of {format_bytes(GAP_BYTES)})"
    if known is not None and known.complete:
        in_use = f"the one of {known.date}"
    return (
        f"; the profile is not kept, and plans and reads go by {in_use} as before: measure again"
        " while the machine is idle, or keep it all the same with --keep-doubtful"
    )


def _why_worse(profile: Any, known: Any) -> str:
    """Why a profile should not take the place of the known one, or ""."""
    from flashllm.hardware.staleness import staleness

    if known.complete and not profile.complete:
        return "this measurement was ended early"
    if staleness(known):
        return ""
    if known.complete and len(profile.points) < len(known.points):
        return "it knows more sizes and threads"
    if known.complete and known.rates is not None and profile.rates is None:
        return "it knows memory and kernels too"
    return ""


def _draw(directory: Path | None, profile: Any, pass_ratios: list[float]) -> None:
    if directory is None:
        return
    from flashllm.bench.disk import plots as io_plots

    for path in io_plots.draw(profile, pass_ratios, directory):
        remark(f"drawn: {path}")
