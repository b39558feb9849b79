"""How fast a checkpoint is converted, compared with sequential reads and writes of the device.

    python -m benchmarks.conversion SRC [--dtype int4] [--into DIR] [--probe 2GiB] [--rounds 3]

Each round reads part of the checkpoint and writes a file, both past the page cache, one large
block after another as `dd` would, then both at once, as a copy must: a disk shares what it has
between the two. Then it converts, without predictors, in a process of its own, with nothing of the
checkpoint in the page cache. Beside the rates stand what the conversion took of
the processors, which other programs disturb less, and its largest resident memory. What is
written is removed.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from flashllm.convert.output.destination import check_space
from flashllm.convert.source.files import RangeFile, set_direct

from benchmarks.own_command import CommandError, ended, remark
from benchmarks.page_cache import cached_share, drop_page_cache
from benchmarks.results import markdown
from flashllm.bench.header import run_header
from flashllm.bench.sample_statistics import Spread
from flashllm.cli.shared.flags import argument
from flashllm.dtypes import DTYPES
from flashllm.errors import ReadFailed, UsageError
from flashllm.settings.values import parse_positive, parse_size

NAME = "conversion"
BLOCK_BYTES = 8 << 20
PROBE_BYTES = 2 << 30
MB = 1e6

_CONVERT = """
import json, resource, sys, time
from pathlib import Path
from flashllm.convert import convert
start = time.perf_counter()
convert(Path(sys.argv[1]), Path(sys.argv[2]), dtype=sys.argv[3] or None)
seconds = time.perf_counter() - start
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))
"""


@dataclass(frozen=True, slots=True)
class Round:
    """What one round measured."""

    read_bytes_per_second: float
    write_bytes_per_second: float
    copy_bytes_per_second: float
    """Both at once: the slower of the two."""
    source_bytes_per_second: float
    written_bytes_per_second: float
    cpu_seconds: float
    peak_bytes: int
    cached_share: float | None
    """Of the checkpoint, in the page cache after the conversion."""

    @property
    def share(self) -> float:
        """Of what the slower of reading and writing would allow."""
        slower = min(self.read_bytes_per_second, self.write_bytes_per_second)
        return self.source_bytes_per_second / slower

    @property
    def share_of_copy(self) -> float:
        """Of what reading and writing at once allow."""
        return self.source_bytes_per_second / self.copy_bytes_per_second


def main() -> int:
    """Measure as the arguments ask; the last line of the output is JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.conversion",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=Path, metavar="SRC", help="directory of the checkpoint")
    parser.add_argument("--dtype", choices=DTYPES, help="default: as the checkpoint")
    parser.add_argument("--into", type=Path, help="directory to write to (beside the checkpoint)")
    parser.add_argument(
        "--probe", type=argument(parse_size), default=PROBE_BYTES, help="bytes to read and to write"
    )
    parser.add_argument("--rounds", type=argument(parse_positive), default=3)
    print(_report(parser.parse_args()))
    return 0


def _report(options: argparse.Namespace) -> str:
    files = sorted(options.source.glob("*.safetensors")) + sorted(options.source.glob("*.bin"))
    weights = [path for path in files if path.name.startswith(("model", "pytorch_model"))]
    if not weights:
        raise UsageError(f"{options.source}: no weights; give the directory of a checkpoint")
    parent = options.into or options.source.absolute().parent
    probe_bytes = max(options.probe // BLOCK_BYTES, 1) * BLOCK_BYTES
    source_bytes = sum(path.stat().st_size for path in weights)
    check_space(parent, max(probe_bytes, source_bytes))
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory(dir=parent, prefix="conversion-") as work:
        for number in range(options.rounds):
            rounds.append(_measure(options, weights, source_bytes, probe_bytes, Path(work)))
            remark(NAME, f"round {number + 1}: {rounds[-1]}")
    settings = {"dtype": options.dtype, "source_bytes": source_bytes, "probe_bytes": probe_bytes}
    rows = [["", "median", "least", "most"]]
    for label, values in _columns(rounds, source_bytes).items():
        spread = Spread.of(values)
        rows.append([label, *(f"{v:,.2f}" for v in (spread.median, min(values), max(values)))])
    report = {
        "header": run_header(parent, settings),
        "complete": True,
        "rounds": [
            {**asdict(found), "share": found.share, "share_of_copy": found.share_of_copy}
            for found in rounds
        ],
    }
    return markdown(rows) + "\n" + json.dumps(report)


def _columns(rounds: Sequence[Round], source_bytes: int) -> dict[str, list[float]]:
    """What the table shows, by its label."""
    return {
        "device reads, MB/s": [r.read_bytes_per_second / MB for r in rounds],
        "device writes, MB/s": [r.write_bytes_per_second / MB for r in rounds],
        "both at once, MB/s each": [r.copy_bytes_per_second / MB for r in rounds],
        "converted, MB/s of the source": [r.source_bytes_per_second / MB for r in rounds],
        "converted, MB/s written": [r.written_bytes_per_second / MB for r in rounds],
        "share of the slower": [r.share for r in rounds],
        "share of both at once": [r.share_of_copy for r in rounds],
        "processor seconds a GB of the source": [
            r.cpu_seconds / (source_bytes / 1e9) for r in rounds
        ],
        "peak memory, MB": [r.peak_bytes / MB for r in rounds],
    }


def _measure(
    options: argparse.Namespace,
    weights: Sequence[Path],
    source_bytes: int,
    probe_bytes: int,
    work: Path,
) -> Round:
    """One round; what it wrote is gone afterwards."""
    drop_page_cache(weights)
    read = read_rate(weights, probe_bytes)
    written = write_rate(work / "probe", probe_bytes)
    copied = copy_rate(weights, work / "probe", probe_bytes)
    drop_page_cache(weights)
    out = work / "out"
    command = [sys.executable, "-c", _CONVERT, str(options.source), str(out), options.dtype or ""]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CommandError(said, done.returncode)
    seconds, cpu_seconds, peak_bytes = json.loads(done.stdout.splitlines()[-1])
    out_bytes = sum(path.stat().st_size for path in out.iterdir())
    shutil.rmtree(out)
    return Round(
        read_bytes_per_second=read,
        write_bytes_per_second=written,
        copy_bytes_per_second=copied,
        source_bytes_per_second=source_bytes / seconds,
        written_bytes_per_second=out_bytes / seconds,
        cpu_seconds=cpu_seconds,
        peak_bytes=peak_bytes,
        cached_share=cached_share(weights),
    )


def read_rate(files: Sequence[Path], nbytes: int) -> float:
    """Bytes per second of reading whole blocks of the files in order, past the page cache."""
    block = memoryview(mmap.mmap(-1, BLOCK_BYTES))
    done, start = 0, time.perf_counter()
    for path in files:
        with RangeFile(path) as file:
            if not file.read_directly():
                raise ReadFailed(f"{path}: its file system has no direct I/O to measure with")
            for offset in range(0, file.size - BLOCK_BYTES + 1, BLOCK_BYTES):
                if done >= nbytes:
                    break
                file.read_into(block, offset)
                done += BLOCK_BYTES
    if not done:
        raise UsageError(f"{files[0]}: is too small to measure anything with")
    return done / (time.perf_counter() - start)


def write_rate(path: Path, nbytes: int) -> float:
    """Bytes per second of writing a file in order, past the page cache, until it is durable."""
    block = mmap.mmap(-1, BLOCK_BYTES)
    block.write(os.urandom(BLOCK_BYTES))
    start = time.perf_counter()
    with open(path, "xb", buffering=0) as file:
        if not set_direct(file.fileno(), True):
            raise ReadFailed(f"{path}: its file system has no direct I/O to measure with")
        for _ in range(0, nbytes, BLOCK_BYTES):
            left = memoryview(block)
            while left:
                left = left[file.write(left) or 0 :]
        os.fsync(file.fileno())
    seconds = time.perf_counter() - start
    path.unlink()
    return nbytes / seconds


def copy_rate(files: Sequence[Path], path: Path, nbytes: int) -> float:
    """Bytes per second of reading the files and writing another one at once: of the slower."""
    with ThreadPoolExecutor(1) as beside:
        writing = beside.submit(write_rate, path, nbytes)
        return min(read_rate(files, nbytes), writing.result())


if __name__ == "__main__":
    sys.exit(ended(NAME, main))
