"""A ceiling is one for the whole process: its peak, as the kernel saw it, stays below."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    prompt = " ".join(str(3 + number % 90) for number in range(100))
    return subprocess.run(
        [sys.executable, "-m", "flashllm", "run", str(directory), "--ids", prompt, "-n", "50",
         "--json", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "FLASHLLM_HOME": str(directory.parent / "home")},
    )  # fmt: skip


def smallest_mib(directory: Path, *arguments: str) -> int:
    refused = run(directory, "--memory", "10MB", *arguments)
    assert refused.returncode == 71
    assert refused.stdout == ""
    assert "Traceback" not in refused.stderr
    found = re.search(r"--memory (\d+)MiB", refused.stderr)
    assert found is not None
    return int(found[1])


@LINUX
@pytest.mark.parametrize("arguments", [(), ("--select", "all"), ("--io-threads", "1")])
def test_the_ceiling_suggested_is_accepted_and_kept(
    sparse_model: Path, arguments: tuple[str, ...]
) -> None:
    mebibytes = smallest_mib(sparse_model, *arguments)
    accepted = run(sparse_model, "--memory", f"{mebibytes}MiB", *arguments)
    assert accepted.returncode == 0, accepted.stderr
    memory: dict[str, Any] = json.loads(accepted.stdout)["memory"]
    assert memory["ceiling_bytes"] == mebibytes << 20
    assert memory["rss_peak_bytes"] <= memory["ceiling_bytes"]
    # The estimate is no licence to waste: most of what was set aside is in use.
    assert memory["rss_peak_bytes"] > 0.6 * memory["ceiling_bytes"]
