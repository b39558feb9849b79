"""The report of `bench io`: plain values, and tables for people."""

from __future__ import annotations

import statistics
from typing import Any

from flashllm.bench.disk.fit import has_rate
from flashllm.bench.disk.plots import size_name
from flashllm.bench.disk.sweep import Sweep
from flashllm.bench.disk.target import Target
from flashllm.core.numpy_twin.latency import Latencies
from flashllm.hardware.machine_profile import Profile
from flashllm.telemetry.costs import ratio
from flashllm.text_table import columns

DROOP_FLAGGED = 0.05
"""A last pass slower than this, relative to the first, is mentioned."""
BEST_NOTE = "* the fewest threads within 3 % of the best of their size\n"


def report(target: Target, sweep: Sweep, profile: Profile) -> dict[str, Any]:
    """Everything that was measured, including the histograms' bins."""
    return {
        "target": str(target.path),
        "file_bytes": target.file_bytes,
        "complete": sweep.complete,
        "proven_uncached": sweep.proven,
        "profile": profile.to_json(),
        "points": [
            {
                "read_bytes": size,
                "threads": threads,
                "reads": sum(result.reads for result in results),
                "depth_mean": statistics.mean(result.depth_mean for result in results),
                "last_to_first": _last_to_first([r.bytes_per_second for r in results]),
                "latency_ns": Latencies.merge(result.latencies for result in results).to_json(),
            }
            for (size, threads), results in sorted(sweep.ours.items())
        ],
        "best_threads": {str(size): profile.best_threads(size) for size in _sizes(profile)},
        "passes_to_first": sweep.pass_ratios(),
        "fio": beside_fio(sweep),
        "fio_problem": sweep.fio_problem or None,
    }


def beside_fio(sweep: Sweep) -> list[dict[str, Any]]:
    """Medians of fio and of ours at the points that both measured, with every sample."""
    rows = []
    for (size, threads), results in sorted(sweep.fio.items()):
        theirs = [result.bytes_per_second for result in results]
        ours = [result.bytes_per_second for result in sweep.beside.get((size, threads), [])]
        spread = [result.bytes_per_second for result in sweep.ours.get((size, threads), [])]
        if ours and spread:
            rows.append(
                {
                    "read_bytes": size,
                    "threads": threads,
                    "ours_bytes_per_second": statistics.median(ours),
                    "fio_bytes_per_second": statistics.median(theirs),
                    "ours_to_fio": ratio(statistics.median(ours), statistics.median(theirs)),
                    "spread_to_fio": ratio(statistics.median(spread), statistics.median(theirs)),
                    "ours_samples": ours,
                    "fio_samples": theirs,
                    "fio_latency_ns": results[-1].latency_ns,
                }
            )
    return rows  # fmt: skip


def text(sweep: Sweep, profile: Profile) -> str:
    """Tables: throughput, latencies, fits, passes, and the comparison with fio."""
    points = {(point.read_bytes, point.threads): point for point in profile.points}
    parts = [
        _grid(profile, "MB/s", {p: f"{v.bytes_per_second / 1e6:.0f}" for p, v in points.items()}),
        BEST_NOTE,
        _grid(profile, "p50 µs", _latencies(profile, "p50")),
        _grid(profile, "p99 µs", _latencies(profile, "p99")),
        _fits(profile),
        _passes(sweep),
        _fio(sweep),
    ]
    return "\n".join(part for part in parts if part)


def _sizes(profile: Profile) -> list[int]:
    return sorted({point.read_bytes for point in profile.points})


def _last_to_first(samples: list[float]) -> float:
    return ratio(samples[-1], samples[0])


def _grid(profile: Profile, title: str, cells: dict[tuple[int, int], str]) -> str:
    """Sizes down, threads across; marks the fewest threads within 3 % of the best."""
    threads = sorted({point.threads for point in profile.points})
    rows = [[title, *(f"x{number}" for number in threads)]]
    for size in _sizes(profile):
        best = profile.best_threads(size)
        rows.append([
            size_name(size),
            *(
                cells.get((size, number), "-") + ("*" if number == best else " ")
                for number in threads
            ),
        ])  # fmt: skip
    rows[0][1:] = [f"{name} " for name in rows[0][1:]]
    return columns(rows)


def _latencies(profile: Profile, name: str) -> dict[tuple[int, int], str]:
    return {
        (point.read_bytes, point.threads): f"{point.latency_ns[name] / 1e3:.0f}"
        for point in profile.points
    }


def _fits(profile: Profile) -> str:
    if not profile.fits:
        return ""
    rows = [["t = a + S/B", "a µs", "B MB/s", "error %"]]
    for fit in profile.fits:
        rate = f"{fit.bytes_per_second / 1e6:.1f}" if has_rate(fit, profile.points) else "-"
        cells = f"{fit.per_read_ns / 1e3:.1f}", rate, f"{100 * fit.error:.1f}"
        rows.append([f"x{fit.threads}", *cells])
    return columns(rows)


def _passes(sweep: Sweep) -> str:
    ratios = sweep.pass_ratios()
    if len(ratios) < 2:
        return ""
    worst_place, worst = min(
        (
            (place, _last_to_first([result.bytes_per_second for result in results]))
            for place, results in sweep.ours.items()
        ),
        key=lambda pair: pair[1],
    )
    shown = " ".join(f"{100 * share:.0f}" for share in ratios)
    drooped = ratios[-1] < 1 - DROOP_FLAGGED
    note = " - slower and slower: hot, or busy with something else" if drooped else ""
    return (
        f"passes, % of the first: {shown}{note}\n"
        f"furthest down, last pass to first: {100 * worst:.0f} % "
        f"({size_name(worst_place[0])} x{worst_place[1]})\n"
    )


def _fio(sweep: Sweep) -> str:
    rows = [["beside fio, MB/s", "ours", "fio", "ours/fio", "table/fio"]]
    for row in beside_fio(sweep):
        rates = row["ours_bytes_per_second"] / 1e6, row["fio_bytes_per_second"] / 1e6
        name = f"{size_name(row['read_bytes'])} x{row['threads']}"
        shares = f"{row['ours_to_fio']:.3f}", f"{row['spread_to_fio']:.3f}"
        rows.append([name, *(f"{rate:.0f}" for rate in rates), *shares])
    if len(rows) == 1:
        return ""
    return (
        columns(rows) + "(both into a place a thread; the table's into 32 MiB, as slots spread)\n"
    )
