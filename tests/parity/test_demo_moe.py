"""The demo of experts as it is shipped: its graph, its answers, and the same tokens always.

Whatever the memory, the policy, the I/O threads, and the other contexts by whose turns it answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashllm.engine.loading import load_decoder
from flashllm.engine.local import Model, open_model
from flashllm.errors import MemoryCeilingTooSmall
from flashllm.flash.store import Store
from flashllm.options import POLICIES
from flashllm.system.demos import EXPERTS_DEMO_NAME, demo_checkpoint
from flashllm.tokenizer.tokenizer import load_tokenizer
from tools.demo.score import is_expected

SOURCE = demo_checkpoint(EXPERTS_DEMO_NAME)
PROMPTS, TOKENS = 4, 20
QUESTIONS = 40
ROOM_BYTES = 2 << 20
"""By how much the process may grow between asking for the smallest ceiling and using it."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, converted."""
    from flashllm.convert import demo_model

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHLLM_HOME", str(tmp_path_factory.mktemp("home")))
        return Path(demo_model(name=EXPERTS_DEMO_NAME))


def held_out(intent: str, count: int) -> list[dict[str, Any]]:
    lines = (SOURCE / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
    asked = [record for record in map(json.loads, lines) if record["intent"] == intent]
    return asked[:: len(asked) // count][:count]


def prompts(directory: Path) -> list[list[int]]:
    tokenizer = load_tokenizer(directory)
    assert tokenizer is not None
    return [tokenizer.encode_chat(one["messages"]) for one in held_out("definition", PROMPTS)]


def continue_greedily(decoder: Any, prompt: Sequence[int]) -> list[int]:
    """The likeliest tokens; the end of an answer is no end here, so that each has as many."""
    ids = [int(np.argmax(decoder.prefill(prompt)))]
    while len(ids) < TOKENS:
        ids.append(int(np.argmax(decoder.decode(ids[-1]))))
    return ids


def answers(directory: Path, **settings: Any) -> list[list[int]]:
    decoder, _, store = load_decoder(directory, **settings)
    with store:
        return [continue_greedily(decoder, prompt) for prompt in prompts(directory)]


@pytest.fixture(scope="module")
def expected(directory: Path) -> list[list[int]]:
    """With all experts in memory."""
    found = answers(directory)
    assert all(one != other for one, other in pairwise(found))
    return found


def smallest_memory(directory: Path, contexts: int = 1) -> int:
    """Asked anew each time, since this process grows."""
    with pytest.raises(MemoryCeilingTooSmall) as caught:
        load_decoder(directory, memory=10 << 20, contexts=contexts)
    return caught.value.smallest_bytes + ROOM_BYTES


def open_least(directory: Path, **settings: Any) -> Model:
    """In the least memory, to 2 MiB: a process that shrinks meanwhile would have room for all."""
    around = smallest_memory(directory, contexts=settings["contexts"])
    for room in range(-8, 10, 2):
        with suppress(MemoryCeilingTooSmall):
            return open_model(directory, memory=around + (room << 20), **settings)
    raise AssertionError("it needs 8 MiB more than it said")


def test_every_ceiling_gives_the_same_tokens(directory: Path, expected: list[list[int]]) -> None:
    with Store(directory) as store:
        all_experts = store.header.stride * store.spec.n_layers * store.spec.bundles_per_layer
    slots = []
    for share in (None, 0.2, 0.5, 1.0):
        if share is None:
            decoder, plan, store = load_decoder(directory, least=True)
        else:
            memory = smallest_memory(directory) + int(share * all_experts)
            decoder, plan, store = load_decoder(directory, memory=memory)
        slots.append(sum(plan.slots_per_layer))
        with store:
            found = [continue_greedily(decoder, prompt) for prompt in prompts(directory)]
        assert found == expected
    assert slots == sorted(set(slots)), "each ceiling holds more experts"
    assert slots[0] == 2 * 4, "as many a layer as a token needs"


@pytest.mark.parametrize("io_threads", [1, 32])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_gives_the_same_tokens(
    directory: Path, expected: list[list[int]], policy: str, io_threads: int
) -> None:
    """With the fewest slots, where each of them gives up other experts."""
    assert answers(directory, least=True, policy=policy, io_threads=io_threads) == expected


@pytest.mark.parametrize("io_threads", [1, 32])
def test_three_contexts_by_turns_give_the_same_tokens(
    directory: Path, expected: list[list[int]], io_threads: int
) -> None:
    # No more slots than these: of three contexts they would have a chunk's memory too.
    options = {"contexts": 3, "io_threads": io_threads, "slot_memory": 1 << 20}
    with open_least(directory, **options) as model:
        assert sum(model.plan.slots_per_layer) < 64, "not all experts are in memory"
        contexts = [None, model.new_context(), model.new_context()]
        running = [
            model.generate(prompt, TOKENS, context=context)
            for prompt, context in zip(prompts(directory), contexts, strict=False)
        ]
        found = [
            [token.id for token in turns if token is not None]
            for turns in zip(*zip_longest(*running), strict=True)
        ]
    assert [whole[: len(ids)] for ids, whole in zip(found, expected, strict=False)] == found
    assert all(len(ids) > 3 for ids in found), "an answer ends early where the model ends it"


def test_logits_agree_with_transformers(directory: Path) -> None:
    import torch
    from transformers import Qwen3MoeForCausalLM

    oracle = Qwen3MoeForCausalLM.from_pretrained(SOURCE, dtype=torch.float32).eval()
    with open_model(directory, kv_dtype="f32") as model, torch.no_grad():
        ids = prompts(directory)[0]
        found = model.logits(ids)
        np.testing.assert_allclose(
            found, oracle(torch.tensor([ids])).logits[0].numpy(), atol=1e-4, rtol=0
        )


def test_it_defines_its_words(directory: Path) -> None:
    right = 0
    with open_model(directory) as model:
        for record in held_out("definition", QUESTIONS):
            generation = model.generate(model.tokenizer.encode_chat(record["messages"]), 64)
            right += is_expected("".join(t.text for t in generation), record["expected"])
    # 95.7 % of 600 are right.
    assert right >= 0.8 * QUESTIONS


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in SOURCE.iterdir()) <= 16 << 20


def test_run_answers_from_a_fresh_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    record = held_out("definition", 1)[0]
    question = record["messages"][-1]["content"]
    command = [sys.executable, "-m", "flashllm", "run", EXPERTS_DEMO_NAME, question]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert [path.name for path in (tmp_path / "home" / "models").glob("demo-moe-*")]
