"""What eval says a window loads is what the runtime reads: the same text, window by window."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from flashllm.predictors.calibration_texts import ConversationEncoder
from flashllm.predictors.evaluation import EvaluatedModel, TextSettings, evaluate_text

import flashllm
from flashllm.engine.loading import load_decoder
from flashllm.progress import SilentProgress
from flashllm.telemetry.meter import Meter
from flashllm.tokenizer.tokenizer import load_tokenizer

HELD_OUT = Path(flashllm.__file__).parent / "demo" / "heldout.jsonl"
PROMPT_TOKENS = 24
TOKENS = PROMPT_TOKENS + 400
WINDOWS = (1, 2, 5, 10, 20)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def ids(demo: Path) -> list[int]:
    """Held-out questions and answers, one after the other, as in a chat."""
    tokenizer = load_tokenizer(demo)
    assert tokenizer is not None
    talks = ConversationEncoder(tokenizer)
    found: list[int] = []
    for line in HELD_OUT.read_text(encoding="utf-8").splitlines()[::97]:
        record = json.loads(line)
        answer = {"role": "assistant", "content": record["expected"]}
        found += talks.encode([*record["messages"], answer])
    return found[:TOKENS]


@pytest.fixture(scope="module")
def evaluated(demo: Path, ids: list[int], tmp_path_factory: Any) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("eval") / "text.ids"
    path.write_text(" ".join(map(str, ids)))
    settings = TextSettings(tokens=TOKENS, skip=PROMPT_TOKENS)
    with EvaluatedModel.open(demo, "predicted") as model:
        found = evaluate_text(model, path, settings, SilentProgress())
    return dict(found["windows"]["predicted"])


def decoded_bytes(directory: Path, ids: list[int], window: int) -> float:
    """Useful bytes a token that the runtime read for the tokens behind the prompt."""
    decoder, plan, store = load_decoder(
        directory, select="predicted", window=window, context=TOKENS, overlap="hits"
    )
    with store:
        assert plan.window == window
        decoder.prefill(ids[:PROMPT_TOKENS])
        meter = Meter(store.reader.stats, decoder.pool.counters, decoder.clock)
        useful = 0
        for token in ids[PROMPT_TOKENS:]:
            meter.start()
            decoder.decode(token)
            cost = meter.token()
            # What did not fit would be read again, and is no matter of the window.
            assert cost.evicted_early == cost.extra_rounds == 0
            assert cost.bytes_useful == cost.misses * store.header.stride
            useful += cost.bytes_useful
    return useful / (TOKENS - PROMPT_TOKENS)


@pytest.mark.parametrize("window", WINDOWS)
def test_bytes_a_token(window, evaluated, demo, ids):
    measured = decoded_bytes(demo, ids, window)
    said = evaluated["bytes_per_token"][window - 1]
    assert measured == pytest.approx(said, rel=0.02)
    assert measured > 0
