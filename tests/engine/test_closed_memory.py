"""A closed model keeps no memory, though it is still referred to; the next one needs no more."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import flashllm
from flashllm.engine.local import Model, open_model
from flashllm.errors import MemoryCeilingTooSmall, ModelClosed
from flashllm.system.memory import rss_bytes

PROMPT = [5, 17, 40, 8, 61, 33, 12, 9, 77, 50]
LINUX = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
AGAIN = """
import sys
import flashllm
from flashllm.engine import loading
closed, ceiling = [], int(sys.argv[2])
for _ in range(4):
    with flashllm.open_model(sys.argv[1], memory=ceiling) as model:
        answer = model.generate("What does ocean mean?", 24)
        next(answer)
        closed += [model, answer, model.decoder.context]
print("opened four times")
"""


@LINUX
@pytest.mark.parametrize("select", ["predicted", "all"])
def test_memory_goes_back_when_a_model_is_closed(demo: Path, select: str) -> None:
    open_model(demo, select=select).close()  # what libraries take at their first use
    before = rss_bytes()
    model = open_model(demo, select=select)
    answer = model.generate("What does ocean mean?", 24)
    next(answer)
    context = model.decoder.context
    taken = rss_bytes() - before
    model.close()
    assert taken > 16 << 20
    assert rss_bytes() - before < taken // 4
    assert context.length > 0
    with pytest.raises(ModelClosed):
        next(answer)


@LINUX
def test_a_second_opening_needs_no_more_memory(demo: Path) -> None:
    with pytest.raises(MemoryCeilingTooSmall):
        open_model(demo, memory=10 << 20)
    smallest = subprocess.run(
        [sys.executable, "-m", "flashllm", "run", str(demo), "-p", "x", "--memory", "10MiB"],
        capture_output=True, text=True, check=False, cwd=Path(flashllm.__file__).parents[1],
    ).stderr  # fmt: skip
    found = re.search(r"the smallest that works here is (\d+) MiB", smallest)
    assert found is not None, smallest
    done = subprocess.run(
        [sys.executable, "-c", AGAIN, str(demo), str((int(found[1]) + 4) << 20)],
        capture_output=True, text=True, check=False, cwd=Path(flashllm.__file__).parents[1],
    )  # fmt: skip
    assert done.stdout == "opened four times\n", done.stderr


def test_what_is_only_looked_at_can_be_asked_of_a_closed_model(model: Model) -> None:
    model.generate(PROMPT, 4).complete()
    model.close()
    assert model.decoder.isa
    assert model.io_report()
    assert model.decoder.context.length == len(PROMPT) + 3
    assert model.decoder.pool.marks(0)[0].any()
    model.close()
    model.decoder.close()
    with pytest.raises(ModelClosed):
        model.decoder.new_context()
    with pytest.raises(ModelClosed):
        model.neuron_map()
