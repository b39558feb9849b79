"""Recording, fitting and writing predictors on problems whose answer is known."""

from __future__ import annotations

import json
from contextlib import closing

import numpy as np
import pytest
import torch
from flashllm.predictors.calibrate import ScoreHistogram
from flashllm.predictors.files import PREDICTORS_FILE, write_predictors
from flashllm.predictors.fit import LayerData, add_scores, fit, passes_over, set_gradients
from flashllm.predictors.lowrank import LowRank, Parameters, initial_parameters, rank_of_layer
from flashllm.predictors.progress import SilentProgress
from flashllm.predictors.record import Recording, Shape, split_contexts, unpack_active
from flashllm.predictors.report import FILE_NAME, read_report, table
from flashllm.predictors.train import (
    OPERATIONS_OF_ONE_THREAD,
    operations_of_layer,
    record,
    train_on,
)
from safetensors.torch import load_file

from flashllm.errors import NotEnoughSpace

D_MODEL, D_FFN, N_LAYERS, VOCAB = 32, 96, 2, 200


class Stack:
    """A plain torch stack of feed-forward layers; attention is a mean over the last tokens."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.spec = type("Spec", (), {"n_layers": N_LAYERS, "d_model": D_MODEL, "d_ffn": D_FFN})()
        self.embedding = torch.randn(VOCAB, D_MODEL, generator=generator)
        # Of rank 4: the predictor's rank of 16 can be exact.
        self.ups = [
            torch.randn(D_FFN, 4, generator=generator)
            @ torch.randn(4, D_MODEL, generator=generator)
            for _ in range(N_LAYERS)
        ]
        self.downs = [
            0.1 * torch.randn(D_FFN, D_MODEL, generator=generator) for _ in range(N_LAYERS)
        ]
        self.bias = -6.0 - torch.rand(D_FFN, generator=generator)

    def layer(self, layer: int) -> torch.Tensor:
        return self.ups[layer]

    def inputs(self, ids: list[int]) -> list[torch.Tensor]:
        x = self.embedding[torch.tensor(ids)]
        seen = []
        for up, down in zip(self.ups, self.downs, strict=True):
            mixed = x + torch.cat([torch.zeros(1, D_MODEL), x[:-1]])
            seen.append(torch.nn.functional.layer_norm(mixed, (D_MODEL,)))
            x = x + torch.relu(seen[-1] @ up.T + self.bias) @ down
        return seen

    def prefill(self, ids, *, tap):
        # In two chunks, as a decoder would.
        for start, stop in ((0, len(ids) // 2), (len(ids) // 2, len(ids))):
            for layer, x in enumerate(self.inputs(ids)):
                part = x[start:stop]
                tap(layer, part, part @ self.ups[layer].T + self.bias)


def random_contexts(count: int, tokens: int, seed: int = 0) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, VOCAB, tokens).tolist() for _ in range(count)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    stack = Stack()
    scratch = tmp_path_factory.mktemp("recording")
    contexts = random_contexts(100, 50)
    recorded = record(stack, stack.spec, contexts, scratch, SilentProgress())
    with closing(recorded.recording):
        yield stack, contexts, recorded


@pytest.fixture(scope="module")
def trained(recorded):
    stack, _, recording = recorded
    return train_on(recording, stack.layer, SilentProgress(), seed=3)


def test_rank_of_opt_6_7b_is_the_papers():
    ranks = [rank_of_layer(32, 4096, layer) for layer in range(32)]
    assert ranks == [128] * 28 + [1024] * 4


@pytest.mark.parametrize(
    ("n_layers", "d_model", "expected"),
    [
        (24, 2048, [128] * 21 + [512] * 3),
        (6, 256, [128] * 5 + [192]),
        (2, 32, [16, 24]),
        (1, 1, [1]),
    ],
)
def test_rank_of_other_shapes(n_layers, d_model, expected):
    assert [rank_of_layer(n_layers, d_model, layer) for layer in range(n_layers)] == expected


def test_recording_holds_what_the_decoder_computed(recorded):
    stack, contexts, recording = recorded
    for layer in range(N_LAYERS):
        expected = torch.cat([stack.inputs(ids)[layer] for ids in contexts])
        data = recording.layer(layer)
        assert np.array_equal(data.inputs, expected.half().numpy())
        pre_activation = expected @ stack.ups[layer].T + stack.bias
        active = unpack_active(np.asarray(data.active), D_FFN)
        # Chunks of another length may round another way, so the very smallest are left out.
        clear = pre_activation.abs() > 1e-4
        assert torch.equal(active[clear], pre_activation[clear] > 0)
        mean = pre_activation[: len(recording.split.train)].mean(0)
        torch.testing.assert_close(recording.recording.mean_pre_activation(layer), mean)


def test_split_is_by_whole_contexts_and_covers_all():
    lengths = [7, 100, 3, 50, 20, 20, 9, 41]
    split = split_contexts(lengths)
    ends = set(np.cumsum(lengths))
    assert {split.train.stop, split.tune.stop, split.report.stop} <= ends
    assert (split.train.start, split.report.stop) == (0, sum(lengths))
    assert (split.train.stop, split.tune.stop) == (split.tune.start, split.report.start)
    assert min(map(len, (split.train, split.tune, split.report))) > 0


def test_three_contexts_are_one_for_each_part():
    split = split_contexts([10, 10, 500])
    assert (split.train, split.tune, split.report) == (
        range(10),
        range(10, 20),
        range(20, 520),
    )


def test_a_planted_low_rank_layer_is_predicted_almost_exactly(trained):
    _, _, report = trained
    assert 0.02 < 1 - report.mean["sparsity"] < 0.4
    for layer in report.layers:
        assert layer.false_negatives < 0.01
        assert layer.false_positives < 0.01


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
    pre_activation = x @ up.T - 2.0
    data = layer_data(x, pre_activation > 0)
    train, tune = data.part(range(10_000)), data.part(range(10_000, tokens))
    start = initial_parameters(up, train.inputs, pre_activation[:10_000].mean(0), rank, 0)
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


def test_the_start_with_full_rank_has_the_sign_of_the_pre_activation():
    generator = torch.Generator().manual_seed(2)
    up = torch.randn(D_FFN, D_MODEL, generator=generator)
    x = torch.randn(3000, D_MODEL, generator=generator) + 0.5
    pre_activation = x @ up.T - 6.0
    start = initial_parameters(up, x.half().numpy(), pre_activation.mean(0), D_MODEL, 0)
    scores = start.rounded().scores(x)
    clear = pre_activation.abs() > 0.2
    assert torch.equal(scores[clear] > 0, pre_activation[clear] > 0)


def test_passes_follow_the_number_of_tokens():
    assert passes_over(1_000) > passes_over(300_000) >= 2


def test_the_work_of_a_layer_decides_on_threads_not_the_machine():
    demo, large = Shape(6, 256, 1024, 67_000), Shape(32, 4096, 16384, 300_000)
    assert operations_of_layer(demo, 54_000) < OPERATIONS_OF_ONE_THREAD
    assert operations_of_layer(large, 240_000) > OPERATIONS_OF_ONE_THREAD


def test_the_same_seed_gives_the_same_bytes(recorded, tmp_path):
    stack, _, recording = recorded
    contents = []
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        (tmp_path / name).mkdir()
        write_predictors(tmp_path / name, *train_on(recording, stack.layer, SilentProgress(), seed))
        contents.append([(tmp_path / name / f).read_bytes() for f in (PREDICTORS_FILE, FILE_NAME)])
    assert contents[0] == contents[1]
    assert contents[0] != contents[2]


def test_written_files_hold_the_contracts_tensors_and_report(trained, recorded, tmp_path):
    predictors, thresholds, report = trained
    write_predictors(tmp_path, predictors, thresholds, report)
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE_NAME, PREDICTORS_FILE]
    tensors = load_file(tmp_path / PREDICTORS_FILE)
    assert len(tensors) == 4 * N_LAYERS
    for layer in range(N_LAYERS):
        rank = rank_of_layer(N_LAYERS, D_MODEL, layer)
        found = {part: tensors[f"layers.{layer}.{part}"] for part in ("down", "up", "bias")}
        assert {part: (t.dtype, tuple(t.shape)) for part, t in found.items()} == {
            "down": (torch.float16, (rank, D_MODEL)),
            "up": (torch.float16, (D_FFN, rank)),
            "bias": (torch.float32, (D_FFN,)),
        }
        assert tensors[f"layers.{layer}.threshold"].tolist() == [pytest.approx(thresholds[layer])]
        check_errors(recorded, LowRank(**found), thresholds[layer], report.layers[layer], layer)
    assert read_report(tmp_path) == report
    values = json.loads((tmp_path / FILE_NAME).read_text())
    assert len(values["predicted"]["slots_needed"]) == len(values["windows"])
    assert all(len(row) == N_LAYERS for row in values["oracle"]["slots_needed"])
    assert "mean" in table(report)


def check_errors(recorded, predictor, threshold, reported, layer):
    """The report's figures, counted again from the tensors on the tokens kept for it."""
    data = recorded[2].layer(layer).part(recorded[2].split.report)
    predicted = predictor.scores(torch.from_numpy(data.inputs.astype(np.float32))) > threshold
    active = unpack_active(np.asarray(data.active), D_FFN)
    misses = (active & ~predicted).sum() / active.sum()
    extras = (~active & predicted).sum() / (~active).sum()
    assert reported.false_negatives == pytest.approx(misses.item(), abs=1e-6)
    assert reported.false_positives == pytest.approx(extras.item(), abs=1e-6)
    assert reported.sparsity == pytest.approx(1 - active.float().mean().item(), abs=1e-6)
    assert reported.active_predicted == pytest.approx(predicted.float().mean().item(), abs=1e-6)


def test_a_full_disk_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1 << 20})()
    monkeypatch.setattr("flashllm.predictors.record.shutil.disk_usage", lambda _: usage)
    with pytest.raises(NotEnoughSpace, match="shorter calibration text"):
        Recording(tmp_path, Shape(N_LAYERS, D_MODEL, D_FFN, 100_000), 80_000)
    assert list(tmp_path.iterdir()) == []


def test_odd_widths_are_packed_and_unpacked(tmp_path):
    shape = Shape(1, 3, 13, 5)
    with closing(Recording(tmp_path, shape, 4)) as recording:
        values = torch.randn(5, 13, generator=torch.Generator().manual_seed(0))
        recording.tap(0, torch.full((5, 3), 1e9), values)
        recording.finish()
        assert torch.equal(unpack_active(np.asarray(recording.active(0)), 13), values > 0)
        assert np.isfinite(recording.inputs(0)).all()
        assert list(tmp_path.iterdir()) == []


def layer_data(inputs: torch.Tensor, active: torch.Tensor) -> LayerData:
    bits = np.packbits(active.numpy(), axis=1, bitorder="little")
    return LayerData(inputs.half().numpy(), bits, active.shape[1])


def false_positives(predictor: LowRank, data: LayerData) -> float:
    histogram = ScoreHistogram()
    add_scores(histogram, predictor, data)
    return histogram.false_positives_at(0.04)
