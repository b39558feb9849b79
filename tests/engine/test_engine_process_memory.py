"""The engine's process with a real model: the same tokens, under one ceiling for both processes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from flashllm.cli.shared.open_model import WORKER_ENTRY
from flashllm.engine.local import Model
from flashllm.engine.process.launcher import GROWTH_BYTES, LEAST_GROWTH_BYTES, open_in
from flashllm.engine.process.supervisor import WorkerSupervisor
from flashllm.engine.sampling import Sampling
from flashllm.errors import MemoryCeilingTooSmall
from flashllm.options import ModelOptions
from flashllm.system.memory import rss_bytes, rss_peak_bytes

PROMPT = [3 + number % 90 for number in range(60)]
SLACK_BYTES = 4 << 20
SHRINKS_BYTES = 1 << 20
"""By what this process may shrink while it opens: pages go back to the system."""


def peak_bytes(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_the_smallest_ceiling_named_is_that_of_both_and_is_kept(
    sparse_model: Path, model: Model
) -> None:
    path = str(sparse_model)
    with pytest.raises(MemoryCeilingTooSmall) as refused:
        open_in(WorkerSupervisor(WORKER_ENTRY), path, ModelOptions(memory=10 << 20))
    before = rss_bytes()
    suggested = re.search(r"--memory (\d+)MiB", str(refused.value))
    assert suggested is not None
    assert "application" in str(refused.value)
    # This process may have grown since by what the tests did; so much is added.
    ceiling = (int(suggested[1]) << 20) + SLACK_BYTES
    process = WorkerSupervisor(WORKER_ENTRY)
    with open_in(process, path, ModelOptions(memory=ceiling)) as engine:
        application = engine.plan.split["application"]
        least = before + LEAST_GROWTH_BYTES - SHRINKS_BYTES
        assert least <= application <= rss_peak_bytes() + GROWTH_BYTES
        assert sum(engine.plan.split.values()) <= engine.plan.ceiling_bytes == ceiling
        sampling = Sampling(temperature=0.3, seed=1)
        generation = engine.generate(PROMPT, max_tokens=40, sampling=sampling)
        tokens = list(generation)
        assert peak_bytes(process.pid) <= ceiling - application
        expected = model.generate(PROMPT, 40, sampling)
        assert [token.id for token in tokens] == [token.id for token in expected]
        assert len(tokens) > 2
        assert generation.finish_reason == expected.finish_reason
        memory = generation.report()["memory"]
        assert memory["ceiling_bytes"] == ceiling
        assert memory["rss_peak_bytes"] > memory["application_rss_peak_bytes"] > before // 2
        # Of these tokens the parts add up to the whole, by the child's own clock.
        for token in tokens:
            assert sum(token.cost.parts_ns.values()) == token.cost.wall_ns
        again = engine.generate([*PROMPT, *generation.ids[:-1], 7], max_tokens=5)
        assert len(list(again)) > 0
        assert again.reused_tokens == len(PROMPT) + len(tokens) - 1
        assert again.prefill.reused == again.reused_tokens


GROWS = """
from flashllm.engine.process.launcher import GROWTH_BYTES, LEAST_GROWTH_BYTES, application_bytes
from flashllm.system.memory import rss_bytes
first = application_bytes()
assert GROWTH_BYTES < first < GROWTH_BYTES + rss_bytes() + 1
grown = [bytes(range(256)) * (40 << 12)]
assert application_bytes() == first
grown.append(bytes(range(256)) * (80 << 12))
assert first < application_bytes() <= rss_bytes() + LEAST_GROWTH_BYTES + (1 << 20)
"""


def test_a_model_that_is_opened_again_leaves_the_application_no_larger_part() -> None:
    subprocess.run([sys.executable, "-c", GROWS], check=True)
