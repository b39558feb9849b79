"""Drawing tokens against a plain reference; stop strings against `str.find`."""

import itertools

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from flashllm.engine.local import Model
from flashllm.engine.sampling import Sampler, Sampling, StopMatcher
from flashllm.errors import ModelError, UsageError


def shares(sampling: Sampling, logits: list[float], draws: int = 4000) -> np.ndarray:
    """How often each token is drawn, without a memory of what was seen."""
    counts = np.zeros(len(logits))
    sampler = Sampler(sampling, [])
    for _ in range(draws):
        counts[sampler.next(np.array(logits, dtype=np.float32))] += 1
    return counts / draws


def softmax(logits: list[float], temperature: float) -> np.ndarray:
    weights = np.exp((np.array(logits) - max(logits)) / temperature)
    return weights / weights.sum()


LOGITS = [2.0, 1.0, 0.5, -1.0]


def test_temperature_gives_the_softmax() -> None:
    np.testing.assert_allclose(
        shares(Sampling(temperature=0.7), LOGITS), softmax(LOGITS, 0.7), atol=0.03
    )


@pytest.mark.parametrize(
    ("settings", "kept"),
    [({"top_k": 2}, 2), ({"top_p": 0.7}, 2), ({"top_p": 0.5}, 1), ({"min_p": 0.3}, 2)],
)
def test_cuts_keep_the_likeliest(settings: dict[str, float], kept: int) -> None:
    # Shares at temperature 1: 0.609, 0.224, 0.136, 0.030.
    drawn = shares(Sampling(temperature=1.0, **settings), LOGITS, draws=400)  # type: ignore[arg-type]
    assert np.count_nonzero(drawn) == kept
    assert drawn[:kept].all()


def test_temperature_zero_takes_the_likeliest_and_the_first_of_equals() -> None:
    assert Sampler(Sampling(), []).next(np.array([1.0, 3.0, 3.0], dtype=np.float32)) == 1


def test_penalty_lowers_what_was_seen_on_both_sides_of_zero() -> None:
    sampler = Sampler(Sampling(repetition_penalty=2.0), [0, 1])
    # 3/2 and -1*2 against 2: the unseen one wins.
    assert sampler.next(np.array([3.0, -1.0, 2.0], dtype=np.float32)) == 2
    assert (
        Sampler(Sampling(repetition_penalty=2.0), [0]).next(
            np.array([-1.0, -1.5], dtype=np.float32)
        )
        == 1
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "logits",
    [
        [1.0, np.nan, 2.0],
        [np.nan, 1.0, 2.0],
        [1.0, np.inf, 2.0],
        [-np.inf, -np.inf, -np.inf],
        [np.nan, np.inf, -np.inf],
    ],
)
def test_logits_that_are_no_numbers_are_an_error(logits: list[float], temperature: float) -> None:
    sampler = Sampler(Sampling(temperature=temperature), [])
    with pytest.raises(ModelError, match="hold NaN or infinity"):
        sampler.next(np.array(logits, dtype=np.float32))


def test_minus_infinity_leaves_a_token_out() -> None:
    logits = [-np.inf, 1.0, -np.inf, 0.5]
    assert Sampler(Sampling(), []).next(np.array(logits, dtype=np.float32)) == 1
    assert not shares(Sampling(temperature=5.0), logits, draws=200)[[0, 2]].any()


def test_an_answer_that_becomes_nan_ends_and_the_model_goes_on(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = model.generate([5, 6, 7], 4).complete().ids
    with monkeypatch.context() as patch:
        real = model.decoder.decode
        patch.setattr(model.decoder, "decode", lambda *given: real(*given) * np.float32(np.nan))
        answer = model.generate([5, 6, 7], 4)
        assert next(answer).id == expected[0]
        with pytest.raises(ModelError, match="flashllm verify"):
            next(answer)
    assert model.generate([5, 6, 7], 4).complete().ids == expected


def test_a_seed_repeats_itself() -> None:
    random = np.random.default_rng(0)
    logits = random.normal(size=(50, 100)).astype(np.float32)
    runs = []
    for seed in (1, 1, 2):
        sampler = Sampler(Sampling(temperature=1.0, seed=seed), [])
        runs.append([sampler.next(row) for row in logits])
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"repetition_penalty": 0.0},
        {"seed": -1},
    ],
)
def test_nonsense_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings))):
        Sampling(**settings)  # type: ignore[arg-type]


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 30), max_size=6),
)
def test_stop_matcher_ends_where_the_first_stop_string_begins(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for start, end in itertools.pairwise(edges):
        shown += matcher.push(text[start:end])
        if matcher.stopped:
            break
    else:
        shown += matcher.flush()
    # The first stop string to be complete decides; of several, the one that begins first.
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert shown == text
        assert not matcher.stopped
    else:
        assert matcher.stopped
        assert text.startswith(shown)
        assert any(text[len(shown) :].startswith(stop) for stop in stops)
        assert not any(stop in shown for stop in stops)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UsageError, match="empty"):
        StopMatcher([""])


def warped(logits: np.ndarray, settings: Sampling) -> np.ndarray:
    """Probabilities after the processors of transformers, in the order in which it runs them."""
    warpers = transformers.LogitsProcessorList()
    ids = torch.tensor([[0, 2, 2, 5]])
    if settings.repetition_penalty != 1.0:
        warpers.append(transformers.RepetitionPenaltyLogitsProcessor(settings.repetition_penalty))
    warpers.append(transformers.TemperatureLogitsWarper(settings.temperature))
    if settings.top_k:
        warpers.append(transformers.TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1.0:
        warpers.append(transformers.TopPLogitsWarper(settings.top_p))
    if settings.min_p > 0.0:
        warpers.append(transformers.MinPLogitsWarper(settings.min_p))
    scores = warpers(ids, torch.from_numpy(logits)[None].double())
    found: np.ndarray = torch.softmax(scores, -1)[0].numpy()
    return found


def test_thousand_draws_follow_the_probabilities_of_transformers() -> None:
    """The token drawn is the one that the same number picks from transformers' probabilities."""
    rng = np.random.default_rng(17)
    for seed in range(1000):
        logits = rng.normal(scale=rng.choice([0.5, 2.0, 6.0]), size=40).astype(np.float32)
        settings = Sampling(
            temperature=float(rng.uniform(0.2, 2.0)),
            top_k=int(rng.choice([0, 1, 5, 20])),
            top_p=float(rng.choice([1.0, 0.95, 0.7, 0.3])),
            min_p=float(rng.choice([0.0, 0.05, 0.3, 1.0])),
            repetition_penalty=float(rng.choice([1.0, 1.3, 0.8])),
            seed=seed,
        )
        expected = warped(logits, settings)
        order = np.argsort(-expected, kind="stable")
        number = np.random.Generator(np.random.PCG64(seed)).random()
        bounds = np.cumsum(expected[order])
        place = int(np.searchsorted(bounds, number * bounds[-1], side="right"))
        drawn = Sampler(settings, [0, 2, 2, 5]).next(logits)
        assert expected[drawn] > 0.0, (seed, settings)
        # Where the number lies on a border, rounding decides.
        near = order[max(place - 1, 0) : place + 2]
        is_border = np.abs(bounds - number).min() < 1e-9
        assert drawn == order[place] or (is_border and drawn in near), (seed, settings)
