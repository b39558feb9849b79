"""Answers in several contexts at once: each token has the bits that it has alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashllm.convert import convert
from numpy.typing import NDArray

from flashllm.engine.loading import load_decoder
from flashllm.flash.manifest import read_manifest
from flashllm.kv_cache.context import Context
from flashllm.model import neuron_slices
from flashllm.model.decoder import Decoder
from flashllm.options import POLICIES, PromptNeurons
from flashllm.planning import plan as planning
from tests.parity.test_chunks import experts, gated
from tests.support.smallthinker import SmallThinker
from tests.support.tiny import save_exact_predictors, sparse_opt, tiny

PROMPTS = [[5, 17, 40], list(range(20, 60)), [8], [61, 33, 12, 9, 70, 11]]
STEPS = 8
LOSSY_THRESHOLD = 0.1
"""Of the pre-activation, below which predictors leave neurons out that are not zero."""
Logits = NDArray[np.float32]


def save(name: str, directory: Path) -> Path:
    """A converted model of each kind of selector and of position."""
    source = directory / "source"
    if name == "early router":
        SmallThinker(rope_layout=[1, 0, 1], sliding_window_layout=[0, 0, 1]).save(source)
    elif name == "dense layers":
        sizes = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 19}
        model = tiny("glm4_moe", **sizes, intermediate_size=45, num_key_value_heads=2, head_dim=12)
        model.save_pretrained(source)
    else:
        models = {"opt": sparse_opt, "lossy": sparse_opt, "gate": gated, "experts": experts}
        models["all"] = lambda: gated(hidden_act="silu")
        made = models[name]()
        made.save_pretrained(source)
    options: dict[str, Any] = {"dtype": "int8" if name in ("gate", "dense layers") else "f16"}
    if name in ("opt", "lossy"):
        options["predictors"] = directory / "predictors.safetensors"
        threshold = 0.0 if name == "opt" else LOSSY_THRESHOLD
        save_exact_predictors(made, options["predictors"], threshold)
    convert(source, directory / "model", **options)
    return directory / "model"


@pytest.fixture(
    scope="module",
    params=["opt", "lossy", "gate", "all", "experts", "early router", "dense layers"],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(request.param, tmp_path_factory.mktemp("blocks"))


def alone(decoder: Decoder, ids: list[int]) -> list[Logits]:
    """Logits of a greedy answer, token by token."""
    context = decoder.context
    found = [decoder.prefill(ids, context=context)]
    for _ in range(STEPS):
        found.append(decoder.decode(int(np.argmax(found[-1])), context))
    return found


def together(directory: Path, count: int, **options: Any) -> list[list[Logits]]:
    """The same of several answers, the second of which has one token fewer."""
    decoder, _, store = load_decoder(directory, contexts=count, **options)
    with store:
        contexts = [decoder.context, *(decoder.new_context() for _ in range(count - 1))]
        prompts = (PROMPTS * count)[:count]
        pairs = zip(prompts, contexts, strict=True)
        found = [[decoder.prefill(ids, context=context)] for ids, context in pairs]
        for step in range(STEPS):
            going = [n for n in range(count) if n != 1 or step < STEPS - 1]
            tokens = [int(np.argmax(found[n][-1])) for n in going]
            logits = decoder.decode_each(tokens, [contexts[n] for n in going])
            for n, own in zip(going, logits, strict=True):
                found[n].append(own)
        lengths = [len(prompts[n]) + STEPS - (n == 1) for n in range(count)]
        assert [context.length for context in contexts] == lengths
    return found


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[Logits]]:
    decoder, _, store = load_decoder(model)
    with store:
        return [alone(decoder, ids) for ids in PROMPTS]


def check(found: list[list[Logits]], expected: list[list[Logits]], what: object) -> None:
    for n, logits in enumerate(found):
        wanted = expected[n % len(PROMPTS)]
        for step, own in enumerate(logits):
            assert np.array_equal(own, wanted[step]), (what, n, step)
        assert len(logits) == STEPS + (n != 1)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_each_answer_is_as_it_is_alone(
    model: Path, expected: list[list[Logits]], count: int
) -> None:
    check(together(model, count), expected, count)


def test_at_the_least_ceiling_and_with_every_policy(
    model: Path, expected: list[list[Logits]]
) -> None:
    settings: list[dict[str, Any]] = [{"least": True, "policy": policy} for policy in POLICIES]
    for setting in [*settings, {"least": True, "io_threads": 1, "overlap": "none"}]:
        check(together(model, 4, **setting), expected, setting)


@pytest.mark.parametrize("reads", ["union", "layer"])
def test_each_row_with_its_own_neurons_or_with_those_of_all(
    model: Path, expected: list[list[Logits]], reads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of each row's own neurons have the bits of those with the neurons of all rows."""
    added: list[object] = []
    own = neuron_slices.NeuronSlices._add_own

    def noted(self: Any, tile: Any, wanted: Any, out: Any) -> Any:
        added.append(tile)
        used = own(self, tile, wanted, out)
        whole = used(0)
        assert not whole[~wanted].any()
        assert all(np.array_equal(used(at), whole[at:]) for at in range(1, len(wanted)))
        return used

    monkeypatch.setattr(neuron_slices, "is_less_work", lambda _: True)
    monkeypatch.setattr(neuron_slices.NeuronSlices, "_add_own", noted)
    if reads == "layer":
        monkeypatch.setattr(planning, "union_tokens_of", lambda *_: 1)
    check(together(model, 4, least=True), expected, reads)
    assert bool(added) == (read_manifest(model).spec.experts is None)


def test_blocks_that_read_layers_whole(tmp_path: Path) -> None:
    """More tokens than the union is read of: experts in 33 contexts."""
    directory = save("experts", tmp_path)
    decoder, plan, store = load_decoder(directory)
    with store:
        expected = [alone(decoder, ids) for ids in PROMPTS]
    assert plan.union_tokens == 32
    check(together(directory, 33), expected, 33)


def test_a_block_reads_once_what_several_need(tmp_path: Path) -> None:
    directory = save("experts", tmp_path)
    decoder, _, store = load_decoder(directory, contexts=4, least=True, overlap="none")
    with store:
        contexts = [decoder.context, *(decoder.new_context() for _ in range(3))]
        for context in contexts:
            decoder.prefill(PROMPTS[0], context=context)

        def missed(compute: Any) -> int:
            before = decoder.pool.counters.misses
            compute()
            return int(decoder.pool.counters.misses - before)

        together = missed(lambda: list(decoder.decode_each([9] * 4, contexts)))
        assert 0 < together <= decoder.spec.n_layers * 3, "as many as one token needs"


@pytest.mark.parametrize("name", ["opt", "gate"])
def test_a_part_of_each_layer_is_held_in_one_piece_where_layers_are_read_whole(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four rows of which two read what they need in the end, from slots that never changed."""
    directory = save(name, tmp_path)
    prompts = [[*ids, 3, 4] for ids in PROMPTS]  # all too long to read what they need only
    decoder, _, store = load_decoder(directory)
    with store:
        expected = [alone(decoder, ids) for ids in prompts]
        spec, stride = decoder.spec, store.header.stride
    half = spec.bundles_per_layer // 2
    monkeypatch.setattr(planning, "union_tokens_of", lambda *_: 2)
    slots = half * spec.bundled_layers * stride
    decoder, plan, store = load_decoder(directory, contexts=4, slot_memory=slots)
    assert plan.reads_layers_whole
    with store:
        pool, layers = decoder.pool, range(spec.bundled_layers)
        contexts = [decoder.context, *(decoder.new_context() for _ in range(3))]
        pairs = zip(prompts, contexts, strict=True)
        found = [[decoder.prefill(ids, context=context)] for ids, context in pairs]
        for step in range(STEPS):
            going = range(4) if step < STEPS // 2 else range(2)
            tokens = [int(np.argmax(found[n][-1])) for n in going]
            before = store.reader.stats()["bytes_useful"]
            logits = decoder.decode_each(tokens, [contexts[n] for n in going])
            for n, own in zip(going, logits, strict=True):
                found[n].append(own)
            if len(going) == 4:
                held = [pool.marks(layer)[0] for layer in layers]
                assert all(
                    own[: np.count_nonzero(own)].all() and np.count_nonzero(own) == count
                    for own, count in zip(held, plan.slots_per_layer, strict=True)
                )
                missing = sum(int(np.count_nonzero(~own)) for own in held)
                assert store.reader.stats()["bytes_useful"] - before == missing * stride
    for n, logits in enumerate(found):
        for step, own in enumerate(logits):
            assert np.array_equal(own, expected[n][step]), (n, step)


def beside(directory: Path, **options: Any) -> tuple[list[list[Logits]], list[int]]:
    """Answers of which two are going while the prompts of two are read; tokens beside each pass."""
    decoder, _, store = load_decoder(directory, contexts=4, **options)
    with store:
        contexts = [decoder.context, *(decoder.new_context() for _ in range(3))]
        found: list[list[Logits]] = [[] for _ in PROMPTS]
        for n in (0, 2):
            found[n].append(decoder.prefill(PROMPTS[n], context=contexts[n]))
        passing: list[int] = []
        counts = []

        def pending(numbers: list[int]) -> list[tuple[Context, int]]:
            return [(contexts[n], int(np.argmax(found[n][-1]))) for n in numbers]

        def going() -> list[tuple[Context, int]]:
            passing[:] = [n for n in range(4) if 0 < len(found[n]) <= STEPS]
            counts.append(len(passing))
            return pending(passing)

        reading = [1, 3]
        passes = decoder.prefill_beside(
            [PROMPTS[n] for n in reading], [contexts[n] for n in reading], [0, 0], going
        )
        for ended, logits in passes:
            for n in [*passing, *(reading[at] for at in ended)]:
                found[n].append(next(logits))
        while left := [n for n in range(4) if len(found[n]) <= STEPS]:
            tokens = [token for _, token in pending(left)]
            logits = decoder.decode_each(tokens, [contexts[n] for n in left])
            for n, own in zip(left, logits, strict=True):
                found[n].append(own)
        assert [context.length for context in contexts] == [len(ids) + STEPS for ids in PROMPTS]
    return found, counts


@pytest.mark.parametrize("prompt_neurons", ["exact", "selected"])
def test_answers_beside_prompts_are_as_they_are_alone(
    model: Path, prompt_neurons: PromptNeurons, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes of ten tokens, of which the 46 of two prompts take several."""
    decoder, _, store = load_decoder(model, prompt_neurons=prompt_neurons)
    with store:
        expected = [alone(decoder, ids) for ids in PROMPTS]
    for few in (True, False):
        if not few:
            monkeypatch.setattr(planning, "union_tokens_of", lambda *_: 1)
        options = {"prompt_neurons": prompt_neurons, "chunk_tokens": 10, "least": True}
        found, counts = beside(model, **options)
        assert counts[:3] == [2, 2, 2]
        assert max(counts) == 3, "one whose prompt has ended goes on beside the other"
        for n, logits in enumerate(found):
            for step, own in enumerate(logits):
                assert np.array_equal(own, expected[n][step]), (few, n, step)
