"""Models that lie on a device as far as it has room: each that torch has here, the CPU too.

The oracle is the same model without a device. With weights in f32 and f16 and keys and values in
f32 only the order of sums differs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flashllm.convert import convert
from numpy.typing import NDArray

from flashllm.device.memory import is_there
from flashllm.engine.local import Model, open_model
from flashllm.errors import OutOfMemory, UsageError
from flashllm.flash.layout import read_header
from flashllm.model.decoder import Decoder
from flashllm.planning import plan as plan_module
from flashllm.units import MIB
from flashllm.weight_cache.slot_pool import SlotPool
from tests.support.tiny import tiny

PROMPT = [5, 17, 40, 8, 61, 33, 12, 9, 77, 50]
TOKENS = (3, 7, 9, 3, 44, 90)
FLOATS, ROUNDED, GROUPS = 1e-5, 1e-3, 2e-3
"""Of the largest logit. Another order of sums differs by some 10^-6. Keys and values in f16 may
then be rounded the other way, by 2^-10 of one, and the core rounds vectors to 14 bits where weights
are in groups."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Converts small models by activation, or with experts, at their first use."""
    root = tmp_path_factory.mktemp("device")

    def model(kind: str, dtype: str) -> Path:
        source, converted = root / kind, root / f"{kind}-{dtype}"
        if not source.exists():
            if kind == "experts":
                made = tiny("mixtral", num_local_experts=6, num_experts_per_tok=2,
                            intermediate_size=40, num_key_value_heads=3)  # fmt: skip
            else:
                made = tiny("llama", intermediate_size=200, num_key_value_heads=3, hidden_act=kind)
            made.save_pretrained(source)  # type: ignore[operator]
        if not converted.exists():
            convert(source, converted, dtype=dtype)
        return converted

    return model


def logits_of(decoder: Decoder) -> NDArray[np.float32]:
    """After a prompt, and after each of some tokens."""
    found = [decoder.prefill(PROMPT), *(decoder.decode(token) for token in TOKENS)]
    return np.array(found)


def on_device(device: str, directory: Path, nbytes: int = 64 * MIB, **options: Any) -> Model:
    return open_model(directory, device=device, device_memory=nbytes, **options)


def placed_split(device: str, directory: Path, **options: Any) -> dict[str, int]:
    """The parts of what lies on a device that has room for everything."""
    with on_device(device, directory, **options) as model:
        assert model.plan.device is not None
        return model.plan.device.split


@pytest.mark.parametrize(
    ("kind", "dtype", "kv_dtype", "tolerance"),
    [
        ("relu", "f32", "f32", FLOATS),
        ("relu", "int4", "f16", GROUPS),
        ("silu", "f16", "f32", FLOATS),
        ("silu", "f16", "f16", ROUNDED),
        ("silu", "int8", "f16", GROUPS),
        ("experts", "f16", "f32", FLOATS),
        ("experts", "int4", "f16", GROUPS),
    ],
)
def test_answers_are_near_those_without_a_device_at_any_split(
    device: str,
    models: Callable[[str, str], Path],
    kind: str,
    dtype: str,
    kv_dtype: Any,
    tolerance: float,
) -> None:
    directory = models(kind, dtype)
    with open_model(directory, kv_dtype=kv_dtype) as model:
        expected, slots = logits_of(model.decoder), model.plan.split["slots"]
    split = placed_split(device, directory, kv_dtype=kv_dtype)
    base = split["workspace"]
    everything = sum(split.values())
    for nbytes, layers in (
        (everything, (2, 2)),
        (everything - split["slots"] // 2, (1, 2)),
        (base + split["matrices"] + split["kv"] // 2, (0, 1)),
        (base + split["matrices"] // 2, (0, 0)),
    ):
        with on_device(device, directory, nbytes, kv_dtype=kv_dtype) as model:
            placed, plan = model.plan.device, model.plan
            assert placed is not None
            assert (placed.slot_layers, placed.kv_layers) == layers
            assert sum(placed.split.values()) <= nbytes
            assert 0 < placed.realised.wg <= placed.requested.wg < 1
            assert placed.realised.cg <= placed.requested.cg <= 1
            # What is on the device takes no memory of the process's.
            assert plan.split["slots"] + placed.split["slots"] == slots
            found = logits_of(model.decoder)
            report = model.device_report()
        assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()
        assert report is not None
        there = report["bytes_allocated"] - placed.split["matrices"] - placed.split["kv"]
        block = plan.prefill.bundles * read_header(directory / "ffn.bundles").stride
        assert there == placed.split["slots"] + (block if placed.slot_layers else 0)
        assert report["bytes_to_device"] > placed.split["matrices"]
        assert report["bytes_from_device"] > 0


def check_slots(model: Model, directory: Path) -> int:
    """What is in a slot on the device is what the file has; how many there are."""
    pool, header, placed = model.decoder.pool, read_header(directory / "ffn.bundles"), 0
    assert isinstance(pool, SlotPool)
    pool.drain()
    raw = (directory / "ffn.bundles").read_bytes()
    for layer in range(2):
        assert is_there(pool.rows_of(layer))
        rows = np.asarray(pool.rows_of(layer)).reshape(-1, header.stride)
        for bundle in pool.layer(layer).resident().tolist():
            slot = int(pool.positions(layer, bundle, 1)[0])
            start = header.offset(layer, bundle)
            assert raw[start : start + header.stride] == rows[slot].tobytes(), (layer, bundle)
            placed += 1
    return placed


@pytest.mark.parametrize("kind", ["relu", "experts"])
@pytest.mark.parametrize("overlap", ["none", "layer"])
def test_few_slots_on_the_device_are_filled_and_evicted(
    device: str,
    models: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    overlap: Any,
) -> None:
    directory = models(kind, "f32")
    with on_device(device, directory, overlap=overlap, kv_dtype="f32") as model:
        whole = logits_of(model.decoder)
        assert model.plan.device is not None
        split = model.plan.device.split
    fewest = {"relu": 64, "experts": 2}[kind]
    give_few_slots(monkeypatch, fewest)
    room = sum(split.values())
    with on_device(device, directory, room, overlap=overlap, kv_dtype="f32") as model:
        assert model.plan.slots_per_layer == (fewest, fewest)
        decoder, counters = model.decoder, model.decoder.pool.counters
        found = logits_of(decoder)
        assert counters.misses > 0
        assert check_slots(model, directory) <= 2 * fewest
        # Other bundles are in the slots now: that changes no bit.
        for token in range(20, 40):
            decoder.decode(token)
        assert np.array_equal(logits_of(decoder), found)
        decoder.start_cold()
        assert np.array_equal(logits_of(decoder), found)
    assert np.abs(found - whole).max() <= FLOATS * np.abs(whole).max()


def give_few_slots(monkeypatch: pytest.MonkeyPatch, slots: int) -> None:
    """Plans give each layer so many slots on a device."""
    whole = plan_module._with_device

    def with_few(plan: Any, request: Any, placed: Any) -> Any:
        few = dataclasses.replace(plan, slots_per_layer=(slots,) * len(plan.slots_per_layer))
        room = sum(placed.split.values()) + len(plan.slots_per_layer) * slots * request.stride
        tight = dataclasses.replace(request, memory_bytes=room)
        return whole(few, tight, placed)

    monkeypatch.setattr(plan_module, "_with_device", with_few)


def test_several_contexts_and_kept_prefixes_go_through_the_device(
    device: str,
    models: Callable[[str, str], Path],
) -> None:
    directory, prompts = models("relu", "f32"), [PROMPT, PROMPT[:6], [9, 8, 7]]
    with on_device(device, directory, contexts=3) as model:
        alone = [[token.id for token in model.generate(ids, 6)] for ids in prompts]
        contexts = [model.decoder.context, *(model.new_context() for _ in range(2))]
        going = [
            model.generate(ids, 6, context=context)
            for ids, context in zip(prompts, contexts, strict=True)
        ]
        for each in going:
            next(each)
        first, *others = going
        for _ in range(5):
            first.next_of_each(others)
        assert [each.ids for each in going] == alone
    with open_model(directory) as model:
        assert [[token.id for token in model.generate(ids, 6)] for ids in prompts] == alone


def test_memory_that_is_given_back_is_not_the_devices(
    device: str, models: Callable[[str, str], Path]
) -> None:
    directory = models("relu", "f32")
    split = placed_split(device, directory)
    with on_device(device, directory, sum(split.values()) - split["slots"] // 2) as model:
        expected, decoder = logits_of(model.decoder), model.decoder
        decoder.ask_to_release(64 * MIB)
        found = logits_of(decoder)
        assert decoder.bytes_released > 0
        resized = decoder.pool
        assert isinstance(resized, SlotPool)
        assert resized.layer(0).n_slots == 200
        assert resized.layer(1).n_slots == 64
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "cpu-torch"}, "say with --device-memory how much"),
        ({"device_memory": MIB}, "say with --device of which"),
        ({"device": "cpu-torch", "device_memory": 9000}, "the least that is of use"),
        ({"device": "tpu", "device_memory": MIB}, "--device tpu: it is none that is known"),
        ({"device": "cuda", "device_memory": MIB}, "--device cuda: "),
        ({"device": "mps"}, "--device mps: torch finds no GPU of Apple's here"),
    ],
)
def test_what_cannot_be_is_refused(
    models: Callable[[str, str], Path], options: dict[str, Any], words: str
) -> None:
    if "cuda" in options.get("device", "") and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UsageError) as refused:
        open_model(models("relu", "f32"), **options)
    assert words in str(refused.value)


def test_a_device_that_cannot_multiply_an_encoding_is_refused(
    device: str, models: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise NotImplementedError("no such operator on this device\nand more")

    monkeypatch.setattr("flashllm.device.kernels.decode", refuse)
    with pytest.raises(UsageError, match=r"cannot multiply weights in int4 \(no such operator on"):
        on_device(device, models("relu", "int4"))


def test_a_device_that_is_full_is_an_error_that_says_what_to_do(
    device: str, models: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("no more")

    with on_device(device, models("relu", "f32")) as model:
        monkeypatch.setattr("flashllm.device.kernels.decode", refuse)
        with pytest.raises(OutOfMemory, match="Give less, with --device-memory, than 64"):
            model.decoder.prefill(PROMPT)
        monkeypatch.undo()
        model.decoder.settle()
        model.decoder.prefill(PROMPT)


def test_the_demo_answers_the_same(device: str, demo: Path) -> None:
    prompt = "What is a cat?"
    with open_model(demo) as model:
        expected = model.generate(prompt, 16).complete().ids
    with on_device(device, demo, 200 * MIB) as model:
        generation = model.generate(prompt, 16).complete()
        report = generation.report()
    assert generation.ids == expected
    assert report["device"]["realised"]["wg"] > 0.9
    assert report["device"]["name"] == device
