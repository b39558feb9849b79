"""Training reads its recording in pieces whose size does not depend on how long it is."""

from __future__ import annotations

import json

import pytest
import torch
from flashllm.predictors.recorded_rows import BATCH_TOKENS, RowsOnDisk
from flashllm.predictors.window_counter import WindowCounter

from benchmarks.training_memory import main


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def taken(monkeypatch):
    """Rows of each read, with nothing kept in memory between reads."""
    monkeypatch.setattr("flashllm.predictors.record.MEMORY_ROWS_BYTES", 0)
    sizes: list[int] = []
    take = RowsOnDisk.take

    def watched(self, tokens):
        sizes.append(len(tokens))
        return take(self, tokens)

    monkeypatch.setattr(RowsOnDisk, "take", watched)
    return sizes


@pytest.mark.parametrize("tokens", [2_048, 8_192])
def test_a_layer_is_trained_from_pieces(tmp_path, capsys, taken, tokens):
    options = ["--width", "16", "--neurons", "64", "--rank", "4", "--directory", str(tmp_path)]
    main([*options, "--tokens", str(tokens)])
    found = json.loads(capsys.readouterr().out)
    assert found["tokens"] == tokens
    assert found["rank"] >= 2
    assert found["false_negatives"] < 0.2
    assert 0 < found["rss_peak_bytes_before"] <= found["rss_peak_bytes"]
    assert max(taken) == BATCH_TOKENS
    assert sum(taken) > 4 * tokens
    assert list(tmp_path.iterdir()) == []


def test_too_few_tokens_are_refused():
    with pytest.raises(SystemExit):
        main(["--tokens", "100"])


def test_windows_are_counted_in_pieces_of_bounded_size(monkeypatch):
    monkeypatch.setattr("flashllm.predictors.window_counter.CHUNK_FLAGS", 640)
    sizes = []
    add = WindowCounter._add
    monkeypatch.setattr(
        WindowCounter, "_add", lambda self, flags: (sizes.append(flags.size), add(self, flags))
    )
    counter = WindowCounter(64)
    counter.add(torch.zeros(1_000, 8, dtype=torch.uint8).numpy())
    assert (max(sizes), sum(sizes)) == (640, 64_000)
