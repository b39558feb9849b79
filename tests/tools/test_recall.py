"""The small model of recall: its task, that it learns, and that its checkpoint is what it was."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import torch
from flashllm.convert import convert

from flashllm.engine.loading import open_decoder
from tools.recall.compare import make_passages
from tools.recall.model import RecallModel
from tools.recall.task import BLANK, FIRST_NOISE, FIRST_VALUE, Shape, make_text
from tools.recall.train import Step, make_batch, train

SHAPE = Shape(pairs=10, noise=8, asked=6)


def test_answers_are_the_values_that_were_told() -> None:
    generator = np.random.default_rng(1)
    for shape in (SHAPE, Shape(pairs=10, noise=0, asked=30, popular=0.2)):
        ids, answers = make_text(shape, generator)
        assert len(ids) == len(answers) == shape.tokens
        told = {
            key: value
            for key, value in itertools.pairwise(ids[: shape.prompt].tolist())
            if 0 < key < FIRST_VALUE <= value < FIRST_NOISE
        }
        assert len(told) == shape.pairs
        places = np.flatnonzero(answers >= 0)
        assert len(places) == shape.asked
        assert places[0] > shape.prompt
        assert all(told[int(ids[place - 1])] == answers[place] for place in places)
        assert np.array_equal(places, np.flatnonzero(ids == BLANK))
    assert len({int(ids[place - 1]) for place in places}) <= 2


def test_gaps_between_positions_part_no_pair() -> None:
    ids, positions, answers = make_batch(SHAPE, 40, np.random.default_rng(2))
    steps = positions.diff(dim=1)
    assert (positions[:, 0] == 0).all()
    assert (steps > 1).any()
    assert (steps[answers[:, 1:] >= 0] == 1).all()
    assert (steps[:, : SHAPE.prompt - 1] == 1).all()
    assert ids.shape == positions.shape


def test_it_learns_and_its_checkpoint_gives_its_logits(tmp_path: Path) -> None:
    steps: list[Step] = []
    threads = torch.get_num_threads()
    kept = tmp_path / "training.pt"
    train(3, 600, steps.append, steps_max=12, kept=kept)
    model = train(3, 600, steps.append, steps_max=2, kept=kept)  # goes on where it was
    torch.set_num_threads(threads)
    assert [step.number for step in steps] == list(range(14))
    assert steps[-1].loss < steps[0].loss
    model.save(tmp_path / "checkpoint")
    model = RecallModel.load(tmp_path / "checkpoint")
    convert(tmp_path / "checkpoint", tmp_path / "model", dtype="f32")
    passage = make_passages(SHAPE, 1, seed=4)[0]
    ids = torch.tensor([passage.ids])
    with torch.no_grad():
        expected = model(ids, torch.arange(ids.shape[1])[None])[0][0].numpy()
    with open_decoder(tmp_path / "model", kv_dtype="f32") as decoder:
        found = decoder.logits(passage.ids)
    np.testing.assert_allclose(found, expected, atol=2e-4)
