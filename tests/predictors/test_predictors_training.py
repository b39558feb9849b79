"""Fitting, ranks, and writing predictors, on problems whose answer is known."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest
import torch
from flashllm.predictors.calibration_texts import Context
from flashllm.predictors.files import PREDICTORS_FILE
from flashllm.predictors.fit import add_scores, fit, passes_over, set_gradients
from flashllm.predictors.layer import layer_tokens, train_layer
from flashllm.predictors.lowrank import LowRank, Parameters, Start
from flashllm.predictors.rank import Trial, best_of, choose_rank, ladder, trial_tokens
from flashllm.predictors.recorded_rows import LayerData, RowShape
from flashllm.predictors.report import FILE_NAME, read_report, table
from flashllm.predictors.split import contexts_of, split_contexts
from flashllm.predictors.targets import Prices, Targets
from flashllm.predictors.thresholds import ScoreHistogram
from flashllm.predictors.train import OPERATIONS_OF_ONE_THREAD, operations_of_layer, train
from safetensors.torch import load_file

from flashllm.progress import SilentProgress
from tests.support.encodings import decode
from tests.support.predictor_models import D_FFN, D_MODEL, N_LAYERS, Stack, task_of

PRICES = Prices(false_load=4096.0, miss=4 * 4096.0, dram=0.05)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small work shared between threads is slower where other programs keep the cores busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A stack of rank 4, its task, and the directory with its predictors."""
    stack, output = Stack(), tmp_path_factory.mktemp("trained")
    task = task_of(stack, seed=3)
    report = train(task, output, output.parent / "trained-work", SilentProgress())
    return stack, task, output, report


@pytest.mark.parametrize(
    ("d_model", "d_ffn", "expected"),
    [
        (4096, 16384, [32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]),
        (256, 1024, [32, 48, 64, 96, 128, 192, 204]),
        (32, 96, [4, 8, 16, 24]),
        (32, 4, [3]),
        (1, 1, [1]),
    ],
)
def test_ladders_end_where_a_predictor_is_as_large_as_what_it_predicts(d_model, d_ffn, expected):
    assert ladder(d_model, d_ffn) == expected


def planted(rank: int, noise: float, tokens: int = 4_000, width: int = 64):
    """Data of a layer whose up-projection is of a rank, but for noise that makes it full."""
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(tokens, width, generator=generator)
    up = torch.randn(4 * width, rank, generator=generator)
    up = up @ torch.randn(rank, width, generator=generator) / rank**0.5
    up += noise * torch.randn(4 * width, width, generator=generator)
    margin = x @ up.T - 1.7 * up.square().sum(1).sqrt()
    data = LayerData.of(x.half().numpy(), (margin > 0).numpy())
    return up, data, margin[: tokens * 4 // 5].mean(0)


def chosen_rank(rank: int, noise: float, prices: Prices = PRICES, **targets: float) -> int:
    up, data, mean_margin = planted(rank, noise)
    split = len(data) * 4 // 5
    train, tune = data.part(range(split)), data.part(range(split, len(data)))
    start = Start(up, train, mean_margin, ladder(*up.shape[::-1])[-1], 0)
    seen: list[int] = []
    found = choose_rank(start, train, tune, Targets(**targets), prices, 0, seen.append)
    assert sum(seen) == trial_tokens(len(train), data.shape.d_model, data.shape.d_ffn)
    return found


def test_a_layer_of_a_rank_gets_about_that_rank_and_a_noisy_one_more():
    assert chosen_rank(14, 0.0) == 16
    assert chosen_rank(28, 0.0) == 32
    assert chosen_rank(14, 0.4) > 16


def test_where_memory_is_dear_the_least_rank_that_meets_the_target_is_taken():
    dear = dataclasses.replace(PRICES, dram=1e6)
    assert chosen_rank(28, 0.0, dear, false_positives=0.3) < chosen_rank(28, 0.0)
    # A target that no rank meets leaves the choice to the price alone.
    assert chosen_rank(14, 1.0, dear, false_positives=0.0) == ladder(64, 256)[0]
    free = dataclasses.replace(PRICES, dram=0.0)
    assert chosen_rank(14, 1.0, free, false_positives=0.0) >= 48


def test_the_lowest_rank_that_meets_the_targets_or_the_cheapest_of_all():
    trials = [Trial(32, 0.2, 10.0), Trial(64, 0.02, 30.0), Trial(128, 0.01, 25.0)]
    assert best_of(trials, Targets()) == 64
    assert best_of([*trials[:2], Trial(128, 0.01, 5.0)], Targets()) == 64
    assert best_of(trials, Targets(false_positives=0.001)) == 32


def test_split_is_by_whole_contexts_and_covers_all():
    lengths = [7, 100, 3, 50, 20, 20, 9, 41]
    split = split_contexts(lengths)
    ends = set(np.cumsum(lengths))
    assert {split.train.stop, split.tune.stop, split.report.stop} <= ends
    assert (split.train.start, split.report.stop) == (0, sum(lengths))
    assert (split.train.stop, split.tune.stop) == (split.tune.start, split.report.start)
    assert min(map(len, (split.train, split.tune, split.report))) > 0
    contexts: list[Context] = [[number] * length for number, length in enumerate(lengths)]
    parts = [contexts_of(contexts, part) for part in (split.train, split.tune, split.report)]
    assert list(itertools.chain(*parts)) == contexts
    assert [sum(map(len, part)) for part in parts] == [
        len(split.train), len(split.tune), len(split.report)
    ]  # fmt: skip


def test_three_contexts_are_one_for_each_part():
    split = split_contexts([10, 10, 500])
    assert (split.train, split.tune, split.report) == (
        range(10),
        range(10, 20),
        range(20, 520),
    )


def test_a_planted_low_rank_model_is_predicted_almost_exactly(trained):
    report = trained[3]
    assert 0.02 < 1 - report.mean["sparsity"] < 0.4
    for layer in report.layers:
        assert layer.rank == 4
        assert layer.false_negatives < 0.02
        assert layer.false_positives < 0.02
    assert report.judgement.ratio < 1.01


def test_a_threshold_of_the_activation_moves_the_target_of_the_regression(tmp_path):
    report = train(task_of(Stack(1, threshold=1.5)), tmp_path, tmp_path / "work", SilentProgress())
    assert 0.02 < 1 - report.mean["sparsity"] < 0.4
    assert report.mean["false_negatives"] < 0.02
    assert report.mean["false_positives"] < 0.02


class Warnings(SilentProgress):
    """Keeps what was warned of."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warn(self, text):
        self.texts.append(text)


class NoiseStack(Stack):
    """Activity that nothing can predict."""

    def prefill(self, ids, *, tap):
        generator = torch.Generator().manual_seed(sum(ids))

        def noise(layer, inputs, margin):
            drawn = torch.randn(margin.shape, generator=generator) - 1.0
            tap(layer, inputs, drawn.numpy())

        super().prefill(ids, tap=noise)


@pytest.mark.parametrize("stack", [Stack(), NoiseStack()])
def test_reading_much_in_vain_is_warned_of(tmp_path, stack):
    progress = Warnings()
    report = train(task_of(stack), tmp_path, tmp_path / "work", progress)
    warned = [text for text in progress.texts if "needlessly" in text]
    if isinstance(stack, NoiseStack):
        assert f"{report.mean['false_positives']:.0%} of the silent neurons needlessly" in warned[0]
        assert "the target is 3%" in warned[0]
    else:
        assert warned == []


def test_the_report_part_decides_nothing():
    # Another activity in the report part changes what is reported and no bit of the predictor.
    up, data, mean_margin = planted(8, 0.2, tokens=1_500, width=32)
    split = split_contexts([100] * 15)
    rows = data.rows.take(np.arange(len(data)))
    rows[split.report.start :, 2 * data.shape.d_model :] ^= 0xFF
    other = LayerData(type(data.rows)(rows), data.shape, data.tokens)
    found = []
    for variant in (data, other):
        seen: list[int] = []
        found.append(
            train_layer(variant, split, lambda: up, mean_margin, 256, Targets(), 0, seen.append)
        )
        assert sum(seen) == layer_tokens(split, data.shape.d_model, data.shape.d_ffn)
    one, two = found
    for part in ("down", "up", "bias"):
        assert torch.equal(getattr(one.predictor, part), getattr(two.predictor, part))
    assert [c.threshold for c in one.choices] == [c.threshold for c in two.choices]
    assert one.choices[0].errors.false_negatives < 0.2
    assert two.choices[0].errors.false_negatives > 0.5


def test_training_beats_its_start_where_regression_is_not_the_answer():
    # Where one input silences all neurons, eight others tell nothing: regression spends its rank
    # on them all the same, a classifier need not.
    generator = torch.Generator().manual_seed(1)
    tokens, rank = 12_000, 6
    x = torch.randn(tokens, D_MODEL, generator=generator)
    silenced = torch.rand(tokens, generator=generator) < 0.5
    x[:, 4:12] *= silenced[:, None]
    x[:, 12:] = 0
    x[:, 12] = silenced.float()
    up = torch.randn(D_FFN, D_MODEL, generator=generator)
    up[:, 12] = -8.0
    margin = x @ up.T - 2.0
    data = LayerData.of(x.half().numpy(), (margin > 0).numpy())
    train, tune = data.part(range(10_000)), data.part(range(10_000, tokens))
    start = Start(up, train, margin[:10_000].mean(0), rank, 0).parameters(rank)
    before = false_positives(start.rounded(), tune)
    after = false_positives(fit(start, train, tune, 0.04, 0, lambda _: None), tune)
    assert after < 0.75 * before


def test_gradients_by_hand_are_autograds():
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(*s, generator=generator) for s in ((5, 8), (12, 5), (12,))]
    inputs = torch.randn(7, 8, generator=generator)
    active = torch.rand(7, 12, generator=generator) < 0.2
    by_hand = Parameters(*(tensor.clone() for tensor in tensors))
    set_gradients(by_hand, inputs, active, 6.0)
    down, up, bias = (tensor.requires_grad_() for tensor in tensors)
    torch.nn.functional.binary_cross_entropy_with_logits(
        inputs @ down.T @ up.T + bias, active.float(), pos_weight=torch.tensor(6.0)
    ).backward()
    for mine, theirs in zip(by_hand.tensors(), (down, up, bias), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_the_start_with_full_rank_has_the_sign_of_the_margin():
    generator = torch.Generator().manual_seed(2)
    up = torch.randn(D_FFN, D_MODEL, generator=generator)
    x = torch.randn(3000, D_MODEL, generator=generator) + 0.5
    margin = x @ up.T - 6.0
    data = LayerData.of(x.half().numpy(), (margin > 0).numpy())
    start = Start(up, data, margin.mean(0), D_MODEL, 0)
    scores = start.parameters(D_MODEL).rounded().scores(x)
    clear = margin.abs() > 0.2
    assert torch.equal(scores[clear] > 0, margin[clear] > 0)
    # Of a lower rank are the first directions of the same.
    low = start.parameters(5)
    assert torch.equal(low.down, start.parameters(D_MODEL).down[:5])
    assert low.up.shape == (D_FFN, 5)


def test_passes_follow_the_number_of_tokens():
    assert passes_over(1_000) > passes_over(300_000) >= 2


def test_the_work_of_a_layer_decides_on_threads_not_the_machine():
    demo, large = RowShape(256, 1024), RowShape(4096, 16384)
    assert operations_of_layer(demo, 54_000) < OPERATIONS_OF_ONE_THREAD
    assert operations_of_layer(large, 240_000) > OPERATIONS_OF_ONE_THREAD


def test_the_same_seed_gives_the_same_bytes(trained, tmp_path):
    stack, task, output, _ = trained
    contents = [[(output / name).read_bytes() for name in (PREDICTORS_FILE, FILE_NAME)]]
    for seed in (3, 6):
        again, place = dataclasses.replace(task, seed=seed), tmp_path / str(seed)
        place.mkdir()
        train(again, place, tmp_path / "work", SilentProgress())
        contents.append([(place / name).read_bytes() for name in (PREDICTORS_FILE, FILE_NAME)])
    assert contents[0] == contents[1]
    assert contents[0][0] != contents[2][0]
    assert stack.opened > 2


def test_written_files_hold_the_contracts_tensors_and_report(trained):
    stack, task, output, report = trained
    assert sorted(path.name for path in output.iterdir()) == [FILE_NAME, PREDICTORS_FILE]
    tensors = load_file(output / PREDICTORS_FILE)
    assert len(tensors) == 4 * N_LAYERS
    for layer in range(N_LAYERS):
        rank = report.layers[layer].rank
        found = {part: tensors[f"layers.{layer}.{part}"] for part in ("down", "up", "bias")}
        assert {part: (t.dtype, tuple(t.shape)) for part, t in found.items()} == {
            "down": (torch.float16, (rank, D_MODEL)),
            "up": (torch.float16, (D_FFN, rank)),
            "bias": (torch.float32, (D_FFN,)),
        }
        threshold = tensors[f"layers.{layer}.threshold"]
        assert threshold.tolist() == [pytest.approx(report.layers[layer].threshold)]
        check_errors(stack, task, LowRank(**found), layer, report.layers[layer])
    assert read_report(output) == report
    values = json.loads((output / FILE_NAME).read_text())
    assert len(values["predicted"]["slots_needed"]) == len(values["windows"])
    assert all(len(row) == N_LAYERS for row in values["oracle"]["slots_needed"])
    assert values["targets"]["perplexity_ratio"] == task.targets.perplexity_ratio
    assert values["perplexity_dense"] > 1
    assert "mean" in table(report)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_errors_are_those_of_what_is_stored(trained, tmp_path, dtype):
    """Thresholds are chosen, and errors counted, with the rounded matrices."""
    stack, task, _, plain = trained
    rounded = dataclasses.replace(task, dtype=dtype)
    report = train(rounded, tmp_path, tmp_path / "work", SilentProgress())
    tensors = load_file(tmp_path / PREDICTORS_FILE)
    for layer, reported in enumerate(report.layers):
        down, up, bias = (tensors[f"layers.{layer}.{part}"] for part in ("down", "up", "bias"))
        assert down.dtype == up.dtype == torch.uint8
        values = (
            torch.from_numpy(decode(matrix.numpy().reshape(-1), dtype, columns)).float()
            for matrix, columns in ((down, D_MODEL), (up, len(down)))
        )
        found = LowRank(*values, bias)
        check_errors(stack, task, found, layer, reported)
    assert report.mean["false_negatives"] < plain.mean["false_negatives"] + 0.05


def test_a_report_of_an_older_version_is_read(trained, tmp_path):
    report = trained[3]
    older = dataclasses.replace(report, judgement=None)
    (tmp_path / FILE_NAME).write_bytes(older.to_bytes())
    assert read_report(tmp_path) == older
    assert "perplexity" in table(report)
    assert "perplexity" not in table(older)


def check_errors(stack, task, predictor, layer, reported):
    """The report's figures, counted again from the tensors on the contexts kept for it."""
    seen = [stack.margins(ids)[layer] for ids in contexts_of(task.contexts, task.split.report)]
    inputs = torch.cat([inputs for inputs, _ in seen]).half().float()
    active = torch.cat([margin for _, margin in seen]) > 0
    predicted = predictor.scores(inputs) > reported.threshold
    misses = (active & ~predicted).sum() / active.sum()
    extras = (~active & predicted).sum() / (~active).sum()
    assert reported.false_negatives == pytest.approx(misses.item(), abs=2e-3)
    assert reported.false_positives == pytest.approx(extras.item(), abs=2e-3)
    assert reported.sparsity == pytest.approx(1 - active.float().mean().item(), abs=1e-3)
    assert reported.active_predicted == pytest.approx(predicted.float().mean().item(), abs=1e-3)


def false_positives(predictor: LowRank, data: LayerData) -> float:
    histogram = ScoreHistogram()
    add_scores(histogram, predictor, data)
    return histogram.false_positives_at(0.04)
