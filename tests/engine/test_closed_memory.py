"""A closed model keeps no memory, though it is still referred to; the next one needs no more."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

import flashllm
from flashllm.engine.local import Model, open_model
from flashllm.errors import MemoryCeilingTooSmall, ModelClosed

PROMPT = [5, 17, 40, 8, 61, 33, 12, 9, 77, 50]
LINUX = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
OPEN_AND_CLOSE = """
import sys
import flashllm
from flashllm.system.malloc import give_back_free_memory
from flashllm.system.memory import own_bytes
demo, select = sys.argv[1:]
flashllm.open_model(demo, select=select).close()  # what libraries take at their first use
before = own_bytes()
model = flashllm.open_model(demo, select=select)
answer = model.generate("What does ocean mean?", 24)
next(answer)
taken = own_bytes() - before
model.close()
closed = own_bytes() - before
del model, answer
give_back_free_memory()  # what the last names held: nobody else would
print(taken, closed, own_bytes() - before)
"""
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
    """In a process of its own: what other tests leave behind goes back at any moment."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN_AND_CLOSE, str(demo), select],
        capture_output=True, text=True, check=False, cwd=Path(flashllm.__file__).parents[1],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    taken, closed, freed = map(int, done.stdout.split())
    assert taken > 16 << 20
    # The answer is not over: it has its text, and refers to the tokenizer for it.
    assert closed < taken // 2
    assert freed < taken // 4


def test_a_closed_model_is_freed_without_the_garbage_collector(demo: Path) -> None:
    gc.disable()
    try:
        model = flashllm.open_model(demo)
        assert not gc.isenabled(), "the caller's choice stays"
        model.generate("What does ocean mean?", 4).complete()
        parts = [weakref.ref(part) for part in (model, model.tokenizer, model.decoder)]
        model.close()
        del model
        assert [part() for part in parts] == [None, None, None]
    finally:
        gc.enable()


def test_a_closed_model_says_so_and_keeps_its_length(demo: Path) -> None:
    model = open_model(demo)
    answer = model.generate("What does ocean mean?", 24)
    next(answer)
    context = model.decoder.context
    model.close()
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


def test_a_closed_model_that_is_referred_to_holds_no_words(demo: Path) -> None:
    with open_model(demo) as model:
        words = weakref.ref(model.tokenizer)
        ids = model.tokenizer.encode("rain")
        model.generate(ids, 2).complete()
    gc.collect()
    assert words() is None
    assert model.has_tokenizer
    assert model.tokenizer.encode("rain") == ids, "read anew"
