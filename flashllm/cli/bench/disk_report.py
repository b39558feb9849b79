"""What `bench io` prints, of a whole sweep and of a quick profile."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from flashllm.cli.shared.output import Output


def write_json(
    arguments: argparse.Namespace,
    target: Any,
    sweep: Any,
    profile: Any,
    remarks: list[str],
    kept: Path | None,
    interrupted: bool,
) -> None:
    """One JSON object: what was measured, and how."""
    from flashllm.bench.disk import report
    from flashllm.bench.header import run_header

    Output().json({
        "header": run_header(target.path.parent, _plain(arguments)),
        **report.report(target, sweep, profile),
        "interrupted": interrupted,
        "profile_file": str(kept) if kept else None,
        "remarks": remarks,
    })  # fmt: skip


def write_text(
    target: Any, settings: Any, sweep: Any, profile: Any, kept: Path | None, interrupted: bool
) -> None:
    """Tables for people."""
    from flashllm.bench.disk import report

    device, output = profile.device, Output()
    ended = "; ENDED EARLY" if not profile.complete else ""
    if interrupted and profile.complete:
        ended = "; memory and kernels not measured"
    output.write(
        f"{target.path} on {device.name} ({device.kind}, {device.filesystem}), "
        f"{profile.machine_name}\n"
        f"{'quick profile: ' if profile.quick else ''}random direct reads, "
        f"{settings.runs} passes of {settings.seconds:g} s a point, "
        f"{'proven uncached' if sweep.proven else 'not proven uncached'}"
        f"{ended}\n\n"
    )
    output.write(report.text(sweep, profile))
    if profile.rates is not None:
        output.write("\n" + _rates_text(profile.rates))
    if kept:
        output.write(f"\nprofile: {kept}\n")


def _rates_text(rates: Any) -> str:
    """Rates of memory and kernels, in GB/s, and the overheads of a token."""
    from flashllm.text_table import columns

    memory = {f"memory x{n}": rate for n, rate in rates.dram_bytes_per_second.items()}
    kernels = {f"matrix {name}": rate for name, rate in rates.kernel_bytes_per_second.items()}
    scattered = {f"rows {name}": rate for name, rate in rates.rows_bytes_per_second.items()}
    rows = [["memory and kernels", "GB/s"]]
    rows += [[name, f"{v / 1e9:.1f}"] for name, v in {**memory, **kernels, **scattered}.items()]
    beside = (rates.layer_overhead_ns / 1e3, rates.token_overhead_ns / 1e3)
    return (
        columns(rows)
        + f"beside its bytes, a layer {beside[0]:.0f} µs, a token {beside[1]:.0f} µs\n"
    )


def _plain(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings as plain values."""
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(arguments).items()
        if name != "handler"
    }
