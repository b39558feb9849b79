"""The same reads by fio, if it is installed, to compare ours with.

fio's buffers use huge pages, like ours: with small ones a read of 64 KiB is scattered over sixteen
pages, which makes some devices slower by a quarter.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
_BUFFER_BYTES = 4 << 20  # only from 2 MiB on are buffers huge pages
_GRACE_SECONDS = 30.0
_PERCENTILES = {"p50": "50.000000", "p90": "90.000000", "p99": "99.000000", "p99.9": "99.900000"}


@dataclass(frozen=True, slots=True)
class FioResult:
    """One run of fio."""

    read_bytes: int
    threads: int
    bytes_per_second: float
    latency_ns: dict[str, int]
    """mean, p50, p90, p99, p99.9, max."""


def find_fio() -> str | None:
    """Where fio is, or None."""
    return shutil.which("fio")


def fio_command(fio: str, path: Path, read_bytes: int, threads: int, seconds: float) -> list[str]:
    """Arguments of fio for random direct reads, each thread with one in flight."""
    largest = max(_BUFFER_BYTES, read_bytes)
    sizes = f"{read_bytes}/100" if largest == read_bytes else f"{read_bytes}/100:{largest}/0"
    return [
        fio,
        "--name=flashllm",
        "--filename=" + str(path.absolute()).replace(":", "\\:"),
        "--readonly",
        "--allow_file_create=0",
        "--ioengine=psync",
        "--thread",
        f"--numjobs={threads}",
        "--direct=1",
        "--rw=randread",
        "--norandommap",
        "--randrepeat=0",
        "--group_reporting",
        "--time_based",
        f"--runtime={max(int(seconds * 1000), 100)}ms",
        f"--bssplit={sizes}",
        f"--blockalign={read_bytes}",
        "--output-format=json",
    ]


def run_fio(fio: str, path: Path, read_bytes: int, threads: int, seconds: float) -> FioResult | str:
    """Fio's result, or a line that says why there is none."""
    command = fio_command(fio, path, read_bytes, threads, seconds)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=seconds + _GRACE_SECONDS,
            env={**os.environ, **_HUGE_PAGES},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"fio did not run: {error}"
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        return f"fio failed: {said[-1] if said else f'exit code {done.returncode}'}"
    return parse_report(done.stdout, read_bytes, threads)


def parse_report(text: str, read_bytes: int, threads: int) -> FioResult | str:
    """The result in fio's JSON, which may come after other lines."""
    try:
        report: dict[str, Any] = json.loads(text[text.index("{") :])
        read = report["jobs"][0]["read"]
        latency, percentiles = read["clat_ns"], read["clat_ns"]["percentile"]
        return FioResult(
            read_bytes=read_bytes,
            threads=threads,
            bytes_per_second=float(read["bw_bytes"]),
            latency_ns={
                "mean": int(latency["mean"]),
                **{name: int(percentiles[key]) for name, key in _PERCENTILES.items()},
                "max": int(latency["max"]),
            },
        )
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return f"fio's report is not understood: {type(error).__name__} {error}"
