"""The engine: the same answer at every setting, accounts that close, and stopping."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flashllm.convert import convert

from flashllm.engine.loading import load_decoder
from flashllm.engine.local import Model, open_model
from flashllm.engine.sampling import Sampling
from flashllm.errors import MemoryCeilingTooSmall, ModelError, ModelNotFound, UsageError
from flashllm.flash import file_loading
from flashllm.model.active_set_selectors import SelectAll
from flashllm.system.clock import PARTS
from tests.support.tiny import save_opt, tiny_opt

PROMPT = [5, 17, 40, 8, 61, 33, 12, 9, 77, 50]


def tokens(directory: Path, count: int = 60, **settings: Any) -> list[int]:
    with open_model(directory, **settings) as model:
        return [token.id for token in model.generate(PROMPT, max_tokens=count)]


def smallest_memory(directory: Path, **settings: Any) -> int:
    with pytest.raises(MemoryCeilingTooSmall) as caught:
        open_model(directory, memory=10 << 20, **settings)
    # The interpreter itself may have grown by a page or two since.
    return caught.value.smallest_bytes + (4 << 20)


SETTINGS: list[dict[str, Any]] = [
    {"select": "oracle"},
    {"select": "all"},
    {"window": 1},
    {"window": 50},
    {"io_threads": 1},
    {"direct": False},
    {"context": 100},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_settings_do_not_change_the_answer(sparse_model: Path, settings: dict[str, Any]) -> None:
    assert tokens(sparse_model, **settings) == tokens(sparse_model)


@pytest.mark.parametrize("select", ["predicted", "all", "oracle"])
def test_the_smallest_ceiling_gives_the_same_answer(sparse_model: Path, select: str) -> None:
    memory = smallest_memory(sparse_model, select=select)
    assert tokens(sparse_model, select=select, memory=memory) == tokens(sparse_model)


def test_a_layer_that_needs_more_slots_than_it_has_is_done_in_passes(sparse_model: Path) -> None:
    expected = tokens(sparse_model, count=20, select="all")
    decoder, plan, store = load_decoder(sparse_model, select="oracle", least=True)
    n_bundles = store.header.bundles_per_layer
    assert max(plan.slots_per_layer) < n_bundles
    with store:
        decoder.use(SelectAll(n_bundles))
        logits = decoder.prefill(PROMPT)
        found = []
        for _ in range(20):
            found.append(int(np.argmax(logits)))
            logits = decoder.decode(found[-1])
        assert decoder.pool.counters.extra_rounds > 0
        assert decoder.pool.counters.hits < decoder.pool.counters.misses
    assert found == expected


def test_the_pool_never_moves(sparse_model: Path) -> None:
    with open_model(sparse_model, window=2) as model:
        decoder = model.decoder
        address = decoder.pool.address
        for seed in range(8):
            list(model.generate(PROMPT, max_tokens=125, sampling=Sampling(1.0, seed=seed)))
            assert decoder.pool.address == address


def test_window_loads_follow_the_active_sets(sparse_model: Path) -> None:
    """Bytes a token are those of the bundles that the last k tokens did not use, and no others."""
    with open_model(sparse_model, window=3, overlap="hits") as model:
        selector = model.decoder.selector
        history: dict[int, list[set[int]]] = {}
        real = selector.select

        def recording(layer: int, x: Any, gate: Any) -> Any:
            active = real(layer, x, gate)
            history.setdefault(layer, []).append(set(active.ids.tolist()))
            return active

        selector.select = recording
        generation = model.generate(PROMPT, max_tokens=30)
        costs = [token.cost for token in generation][1:]
        for step in range(3, len(costs)):
            misses = 0
            for sets in history.values():
                misses += len(sets[step] - set().union(*sets[step - 3 : step]))
            assert costs[step].misses == misses
            assert costs[step].bytes_useful == misses * model.info.bundle_stride_bytes
            assert costs[step].extra_rounds == 0


def test_accounts_close(model: Model) -> None:
    generation = model.generate(PROMPT, max_tokens=100)
    for token in generation:
        assert set(token.cost.parts_ns) == set(PARTS)
        assert sum(token.cost.parts_ns.values()) == token.cost.wall_ns
    decode = generation.report()["decode"]
    assert decode["tokens"] == 99
    assert sum(decode["parts_ns"].values()) == decode["wall_ns"]
    assert decode["bytes_useful"] <= decode["bytes_read"]


def test_sampling_with_a_seed_repeats(model: Model) -> None:
    def run(seed: int) -> list[int]:
        sampling = Sampling(temperature=1.5, seed=seed)
        return [t.id for t in model.generate(PROMPT, max_tokens=40, sampling=sampling)]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_cancel_during_prefill(model: Model) -> None:
    generation = model.generate(PROMPT, on_prefill=lambda _done, _total: model.cancel())
    assert list(generation) == []
    assert generation.finish_reason == "cancelled"
    assert len(list(model.generate(PROMPT, max_tokens=3))) == 3


def test_progress_of_a_prompt_is_told_layer_by_layer(model: Model) -> None:
    calls: list[tuple[float, int]] = []
    prompt = PROMPT * 10
    next(model.generate(prompt, on_prefill=lambda done, total: calls.append((done, total))))
    chunks = -(-len(prompt) // model.plan.prefill.tokens)
    assert len(calls) == chunks * model.info.spec.n_layers
    done = [call[0] for call in calls]
    assert done == sorted(set(done))
    assert calls[-1] == (len(prompt), len(prompt))


def test_a_prompt_may_be_cancelled_after_any_layer(model: Model) -> None:
    expected = [token.id for token in model.generate(PROMPT, max_tokens=5)]
    for layer in range(model.info.spec.n_layers):
        calls = 0

        def stop(_done: float, _total: int, layer: int = layer) -> None:
            nonlocal calls
            calls += 1
            if calls == layer + 1:
                model.cancel()

        generation = model.generate(PROMPT, on_prefill=stop)
        assert (list(generation), generation.finish_reason) == ([], "cancelled")
        assert calls == layer + 1
        assert [token.id for token in model.generate(PROMPT, max_tokens=5)] == expected


def test_cancel_during_decode_keeps_what_was_said(model: Model) -> None:
    expected = [token.id for token in model.generate(PROMPT, max_tokens=10)]
    generation = model.generate(PROMPT, max_tokens=100)
    found = []
    for token in generation:
        found.append(token.id)
        if len(found) == 10:
            model.cancel()
    assert found == expected
    assert generation.finish_reason == "cancelled"


def test_cancel_from_another_thread(model: Model) -> None:
    expected = [token.id for token in model.generate(PROMPT, max_tokens=3)]
    generation = model.generate(PROMPT, max_tokens=20)

    def stop_within_the_third_token(layer: int) -> None:
        if len(generation.ids) == 3 and layer == 1:
            stopper = threading.Thread(target=model.cancel)
            stopper.start()
            stopper.join()

    model.decoder.before_layer = stop_within_the_third_token
    assert [token.id for token in generation] == expected
    assert generation.finish_reason == "cancelled"
    model.decoder.before_layer = None
    assert [token.id for token in model.generate(PROMPT, max_tokens=3)] == expected


def test_cancel_after_close_is_nothing(sparse_model: Path) -> None:
    with open_model(sparse_model) as model:
        pass
    model.cancel()
    model.close()


def test_the_context_ends_a_generation(sparse_model: Path) -> None:
    with open_model(sparse_model, context=12) as model:
        generation = model.generate(PROMPT, max_tokens=50)
        assert len(list(generation)) == 3
        assert generation.finish_reason == "context"


@pytest.mark.parametrize(
    ("ids", "message"),
    [([], "empty"), ([96], "outside the vocabulary"), ([-1], "outside"), ([3] * 161, "context")],
)
def test_prompts_that_cannot_be(model: Model, ids: list[int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        model.generate(ids)
    with pytest.raises(UsageError, match=message):
        model.logits(ids)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="flashllm convert"):
        open_model(tmp_path / "absent")


def test_zero_tokens(model: Model) -> None:
    generation = model.generate(PROMPT, max_tokens=0)
    assert list(generation) == []
    report = generation.report()
    assert report["finish_reason"] == "length"
    assert report["prefill"]["bytes_read"] > 0


def test_a_slow_setting_is_not_silent(sparse_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flashllm import core

    with open_model(sparse_model) as model:
        expected = model.io_report()["fallback"]
        assert (expected is None) == (not [c for c in model.cautions() if "page cache" in c])
    with open_model(sparse_model, direct=False) as model:
        # Asked for, so nobody has to be told.
        assert not [c for c in model.cautions() if "page cache" in c]
        monkeypatch.setattr(core, "FALLBACK", "it was not built")
        assert any("it was not built" in caution for caution in model.cautions())
        assert not any("no vector instructions" in caution for caution in model.cautions())
    if core.NAME == "native":
        monkeypatch.setenv("FLASHLLM_ISA", "scalar")
        with open_model(sparse_model) as model:
            assert any("no vector instructions" in caution for caution in model.cautions())


def test_an_answer_that_is_no_number_is_an_error(tmp_path: Path) -> None:
    checkpoint = tiny_opt()
    with torch.no_grad():
        for layer in checkpoint.model.decoder.layers:
            layer.fc1.weight *= 1e20
            layer.fc2.weight *= 1e20
    convert(save_opt(checkpoint, tmp_path / "source"), tmp_path / "converted")
    with open_model(tmp_path / "converted") as model:
        for temperature in (0.0, 1.0):
            with pytest.raises(ModelError, match="overflows"):
                list(model.generate([5, 6], sampling=Sampling(temperature=temperature)))


def shares_of(rows: tuple[bytes, ...]) -> np.ndarray:
    """The bytes of a map [layers, blocks]."""
    return np.array([list(row) for row in rows])


def neurons_in(rows: tuple[bytes, ...], neurons: int) -> np.ndarray:
    """How many of each layer the shares of a map stand for."""
    shares = shares_of(rows)
    sizes = np.diff(np.linspace(0, neurons, shares.shape[1] + 1).astype(int))
    return np.floor(shares * sizes / 255).astype(int).sum(axis=1)


def test_the_neuron_map_is_what_the_last_token_counted(sparse_model: Path) -> None:
    with open_model(sparse_model, select="predicted", overlap="none") as model:
        model.release_slots(1 << 40)  # with a slot for each neuron nothing would be read
        assert not any(map(any, model.neuron_map().states()))
        neurons, read = model.info.spec.bundles_per_layer, 0
        for seed in range(8):  # other tokens use other neurons
            drawn = model.generate(
                PROMPT, max_tokens=6, sampling=Sampling(temperature=2, seed=seed)
            )
            costs = [token.cost for token in drawn]
            found = model.neuron_map()
            assert (found.layers, found.blocks, found.neurons) == (3, 256, neurons)
            assert neurons_in(found.hit, neurons).sum() == costs[-1].hits
            assert neurons_in(found.loaded, neurons).sum() == costs[-1].misses
            # What was used is in a slot now.
            resident = shares_of(found.resident)
            assert (resident >= shares_of(found.hit)).all()
            assert (resident >= shares_of(found.loaded)).all()
            read += costs[-1].misses
    assert read > 0


class SlowReader:
    """A reader whose reads end when they are let through."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.let_through = threading.Event()
        self.waits = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def wait(self, ticket: int) -> None:
        self.waits.set()
        self.let_through.wait()
        self._reader.wait(ticket)


def test_a_wait_for_the_disk_is_known_while_it_lasts(sparse_model: Path) -> None:
    with open_model(sparse_model) as model:
        slow = SlowReader(model._store.reader)
        model._store._reader = slow  # type: ignore[assignment]
        answer = threading.Thread(target=list, args=[model.generate(PROMPT, max_tokens=2)])
        assert model.current_wait().disk_seconds == 0.0
        answer.start()
        slow.waits.wait()
        first = model.current_wait().disk_seconds
        assert first < (second := model.current_wait().disk_seconds)
        assert second < 600.0
        slow.let_through.set()
        answer.join()
        assert model.current_wait().disk_seconds == 0.0


def test_the_map_of_a_model_that_needs_all_is_what_is_pinned(sparse_model: Path) -> None:
    memory = smallest_memory(sparse_model, select="all")
    with open_model(sparse_model, select="all", memory=memory) as model:
        pinned = model.plan.slots_per_layer
        neurons = model.info.spec.bundles_per_layer
        assert not any(map(any, model.neuron_map().hit))
        list(model.generate(PROMPT, max_tokens=2))
        found = model.neuron_map()
    assert neurons_in(found.hit, neurons).tolist() == list(pinned)
    assert neurons_in(found.loaded, neurons).tolist() == [neurons - count for count in pinned]


def test_rates_of_a_device_without_a_profile_are_unknown(
    sparse_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path))
    with open_model(sparse_model) as model:
        rates = model.rates()
        assert (rates.flash_bytes_per_second, rates.dram_bytes_per_second) == (None, None)
        assert "flashllm bench io" in rates.origin
        assert rates.work is not None
        assert model.rates() is rates


@pytest.mark.parametrize("select", ["predicted", "all"])
def test_opening_tells_how_much_is_read(
    sparse_model: Path, monkeypatch: pytest.MonkeyPatch, select: Any
) -> None:
    whole = tokens(sparse_model, select=select)
    monkeypatch.setattr(file_loading, "_LOAD_PIECE_BYTES", 8192)
    told: list[tuple[int, int]] = []
    with open_model(
        sparse_model, select=select, on_loading=lambda *bytes_: told.append(bytes_)
    ) as model:
        names = ["resident.safetensors"]
        names += ["predictors.safetensors"] if select == "predicted" else []
        total = sum((sparse_model / name).stat().st_size for name in names)
        assert [token.id for token in model.generate(PROMPT, max_tokens=60)] == whole
    assert told[0] == (0, total)
    assert told[-1] == (total, total)
    assert told == sorted(told)
    assert len(told) > total // 8192
