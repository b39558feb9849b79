"""Perplexity in the loop, and the rounds that tighten thresholds until it will do."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from flashllm.predictors.in_loop import bounded, judge, perplexity, raw_tensors
from flashllm.predictors.layer import Choice, TrainedLayer
from flashllm.predictors.lowrank import LowRank
from flashllm.predictors.report import LayerReport
from flashllm.predictors.targets import Targets
from flashllm.predictors.window_counter import WINDOWS, WindowUse

from flashllm import core
from flashllm.errors import LayoutError, UsageError
from flashllm.model.active_set_selectors import SelectPredicted
from flashllm.progress import SilentProgress
from tests.support.predictor_models import D_MODEL, N_LAYERS, Stack, random_contexts, spec_of


def own_texts(count, tokens, seed):
    """What the stack itself says, so that it is worse at it with neurons left out."""
    stack, contexts = Stack(), random_contexts(count, 1, seed)
    for ids in contexts:
        while len(ids) < tokens:
            ids.append(int((stack.margins(ids)[-1][-1] @ stack.embedding.T).argmax()))
    return contexts


TUNE, REPORT = own_texts(3, 20, 1), own_texts(2, 30, 2)
USE = WindowUse([1] * len(WINDOWS), [1.0] * len(WINDOWS))


def layers_of(stack, thresholds):
    """Exact predictors with a threshold a round."""
    errors = LayerReport(D_MODEL, 0.0, 0.0, 0.0, 0.9, 0.1)
    return [
        TrainedLayer(
            LowRank(torch.eye(D_MODEL).half(), up.half(), stack.bias),
            tuple(Choice(threshold, errors, USE) for threshold in thresholds),
            USE,
        )
        for up in stack.ups
    ]


class Warnings(SilentProgress):
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.phases: list[str] = []

    def start(self, phase, total_bytes):
        self.phases.append(phase)

    def warn(self, text):
        self.texts.append(text)


def judged(thresholds, tune=TUNE, report=REPORT, **targets):
    stack, progress = Stack(), Warnings()
    number, judgement = judge(
        stack,
        lambda tensors: stack.use(stack, tensors),
        layers_of(stack, thresholds),
        tune,
        report,
        Targets(**targets),
        1,
        progress,
    )
    chosen = {float(stack.predictors[f"layers.{n}.threshold"]) for n in range(N_LAYERS)}
    assert chosen == {thresholds[number]}
    return number, judgement, progress


def expected(stack, contexts):
    nats = []
    for ids in contexts:
        logits = stack.margins(ids)[-1] @ stack.embedding.T
        nats.append(
            torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none")
        )
    return math.exp(torch.cat(nats).double().mean())


def test_perplexity_is_that_of_the_tokens_after_the_first():
    stack, seen = Stack(), []
    found = perplexity(stack, TUNE, "dense", seen.append)
    assert found == pytest.approx(expected(stack, TUNE), rel=1e-5)
    assert seen == [20, 20, 20]


def test_hopeless_logits_are_a_number():
    class Certain:
        def logits_blocks(self, ids, mode):
            yield np.eye(4, dtype=np.float32)[[0] * len(ids)] * 1e9

    assert math.isfinite(perplexity(Certain(), [[1, 2, 3]], "dense", lambda _: None))


def test_the_loosest_round_that_will_do_is_taken():
    # Nothing is selected at 1e6; everything that is active at 0 or below.
    number, judgement, progress = judged([1e6, 1e6, 0.0, -1.0])
    assert number == 2
    assert judgement.ratio == pytest.approx(1.0, abs=1e-3)
    assert judgement.perplexity_dense == pytest.approx(expected(Stack(), REPORT), rel=1e-5)
    assert judgement.false_negatives_set == pytest.approx(0.01)
    assert judgement.false_negatives_target == 0.04
    assert progress.texts == []
    assert [phase for phase in progress.phases if "round" in phase][-1].startswith(
        "perplexity with predicted neurons, round 3 of at most 4"
    )


def test_where_no_round_will_do_the_best_is_taken_and_said_so():
    number, judgement, progress = judged([1e6, 1.5, 1e6, 1e6], perplexity_ratio=0.5)
    stack = Stack()
    dense = perplexity(stack, TUNE, "dense", lambda _: None)
    ratios = []
    for round_number in range(4):
        stack.use(stack, raw_tensors(layers_of(stack, [1e6, 1.5, 1e6, 1e6]), round_number))
        ratios.append(perplexity(stack, TUNE, "selected", lambda _: None) / dense)
    assert number == int(np.argmin(ratios))
    assert f"{min(ratios):.3f}" in progress.texts[0]
    assert judgement.perplexity_ratio_target == 0.5


def test_the_report_contexts_decide_nothing():
    number, one, _ = judged([1e6, 0.0, 0.0, 0.0])
    again, two, _ = judged([1e6, 0.0, 0.0, 0.0], report=own_texts(2, 30, 9))
    assert number == again == 1
    assert one.perplexity_dense != two.perplexity_dense


def test_few_contexts_are_judged_and_short_ones_are_left_out(monkeypatch):
    monkeypatch.setattr("flashllm.predictors.in_loop.JUDGED_TOKENS_MAX", 25)
    assert bounded([[1], [1] * 10, [2] * 15, [3] * 10]) == [[1] * 10, [2] * 15]
    assert bounded([[1] * 100, [2]]) == [[1] * 100]
    with pytest.raises(UsageError, match="longer lines"):
        bounded([[1], [2]])


def test_the_runtime_takes_the_tensors_as_they_are():
    stack = Stack()
    tensors = raw_tensors(layers_of(stack, [0.5]), 0)
    selector = SelectPredicted(tensors, spec_of(), core.Kernels(threads=1))
    stack.use(stack, tensors)
    for inputs, layer in ((stack.margins(TUNE[0])[n][0], n) for n in range(N_LAYERS)):
        for x in inputs:
            ids = selector.select(layer, x.numpy(), None).ids
            scores = stack.scores(layer, x[None])[0]
            clear = scores.abs() > 1e-3
            named = torch.zeros(len(scores), dtype=torch.bool)
            named[torch.from_numpy(ids).long()] = True
            assert torch.equal(named[clear], (scores > 0)[clear])


def test_a_trained_layer_is_stored_and_read():
    layer = layers_of(Stack(), [0.5, 0.25])[0]
    again = TrainedLayer.from_bytes(layer.to_bytes())
    assert (again.choices, again.oracle) == (layer.choices, layer.oracle)
    assert torch.equal(again.predictor.up, layer.predictor.up)
    for content in (b"", b"\0" * 100, layer.to_bytes()[:-8]):
        with pytest.raises(LayoutError, match="not a trained layer"):
            TrainedLayer.from_bytes(content)
