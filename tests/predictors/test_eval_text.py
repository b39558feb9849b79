"""eval of a text, against transformers and counting by brute force, with predictors that err."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
import torch
from flashllm.convert import convert
from flashllm.predictors.evaluation import EvaluatedModel, TextSettings, evaluate_text
from flashllm.predictors.evaluation.texts import TOKENS_MIN, read_passages
from safetensors.torch import load_file, save_file

from flashllm.errors import UsageError
from flashllm.progress import SilentProgress
from tests.support.tiny import save_exact_predictors, save_opt, sparse_opt, tiny

from .test_predictors_texts import LIMITS, ByteTokenizer, conversation

PASSAGES, LENGTH, SKIP = 6, 90, 10


@pytest.fixture(scope="module")
def oracle_model():
    return sparse_opt()


@pytest.fixture(scope="module")
def directory(oracle_model, tmp_path_factory):
    """Converted with predictors that miss some of the active and name some of the others."""
    root = tmp_path_factory.mktemp("eval")
    path = save_exact_predictors(oracle_model, root / "predictors.safetensors")
    tensors = load_file(path)
    generator = torch.Generator().manual_seed(1)
    for name, tensor in tensors.items():
        if name.endswith("bias"):
            tensor += 0.4 * torch.randn(tensor.shape, generator=generator)
    save_file(tensors, path)
    convert(save_opt(oracle_model, root / "source"), root / "converted", predictors=path)
    return root / "converted"


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(0).integers(4, 96, (PASSAGES, LENGTH))


@pytest.fixture(scope="module")
def text(ids, tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.ids"
    path.write_text("\n".join(" ".join(map(str, line)) for line in ids))
    return path


@pytest.fixture(scope="module")
def report(directory, text):
    with EvaluatedModel.open(directory, None) as model:
        return evaluate_text(model, text, TextSettings(skip=SKIP), SilentProgress())


class Reference:
    """transformers' forward pass, its neurons watched and, if asked for, left out."""

    def __init__(self, model, predictors) -> None:
        self.model = model
        self.layers = model.model.decoder.layers
        self.predictors = predictors
        self.margins: dict[int, torch.Tensor] = {}
        self.chosen: dict[int, torch.Tensor] = {}

    @torch.no_grad()
    def logs(self, ids, *, selected):
        """Log-probabilities [tokens, vocab] of a passage."""

        def watch(index):
            def hook(_module, inputs, output):
                x = inputs[0].reshape(-1, inputs[0].shape[-1])
                part = {k: self.predictors[f"layers.{index}.{k}"].float() for k in PARTS}
                scores = x @ part["down"].T @ part["up"].T + part["bias"]
                self.margins[index] = output.reshape(len(x), -1).clone()
                self.chosen[index] = scores > part["threshold"]
                if not selected:
                    return output
                return torch.where(self.chosen[index].view_as(output), output, -1.0)

            return hook

        with contextlib.ExitStack() as stack:
            for index, layer in enumerate(self.layers):
                handle = layer.fc1.register_forward_hook(watch(index))
                stack.callback(handle.remove)
            logits = self.model(torch.tensor(ids)[None]).logits[0]
        return logits.log_softmax(-1).double().numpy()


PARTS = ("down", "up", "bias", "threshold")


@pytest.fixture(scope="module")
def expected(oracle_model, directory, ids):
    """Sums over all passages, the first tokens of each left out."""
    reference = Reference(oracle_model, load_file(directory / "predictors.safetensors"))
    dense, sparse, margins, named, used = [], [], [], [], []
    for passage in ids.tolist():
        dense.append(reference.logs(passage, selected=False))
        margins.append([reference.margins[layer][SKIP:].numpy() for layer in range(3)])
        named.append([reference.chosen[layer][SKIP:].numpy() for layer in range(3)])
        sparse.append(reference.logs(passage, selected=True))
        used.append([reference.chosen[layer].numpy() for layer in range(3)])
    return {
        "dense": np.stack(dense),
        "predicted": np.stack(sparse),
        "margins": [np.concatenate([m[layer] for m in margins]) for layer in range(3)],
        "named": [np.concatenate([n[layer] for n in named]) for layer in range(3)],
        "used": [np.concatenate([u[layer] for u in used]) for layer in range(3)],
    }


def scored(logs, ids):
    """Log-probabilities of the tokens behind those skipped, [passages, tokens]."""
    rows = logs[:, SKIP - 1 : -1]
    return np.take_along_axis(rows, ids[:, SKIP:, None], axis=2)[..., 0]


def test_perplexities(report, expected, ids):
    modes = report["modes"]
    assert list(modes) == ["dense", "oracle", "predicted"]
    assert report["tokens"] == PASSAGES * LENGTH
    assert report["tokens_counted"] == report["tokens_scored"] == PASSAGES * (LENGTH - SKIP)
    one, two = (scored(expected[name], ids) for name in ("dense", "predicted"))
    assert modes["dense"]["perplexity"] == pytest.approx(math.exp(-one.mean()), rel=1e-4)
    assert modes["oracle"]["perplexity"] == pytest.approx(math.exp(-one.mean()), rel=1e-4)
    assert modes["predicted"]["perplexity"] == pytest.approx(math.exp(-two.mean()), rel=1e-3)
    assert modes["predicted"]["ratio"] == pytest.approx(math.exp((one - two).mean()), rel=1e-3)
    assert abs(modes["predicted"]["ratio"] - 1) > 1e-3  # the predictors do err


def test_agreement_and_divergence(report, expected):
    dense, predicted = (expected[name][:, SKIP - 1 : -1] for name in ("dense", "predicted"))
    same = (dense.argmax(2) == predicted.argmax(2)).mean()
    assert report["modes"]["predicted"]["same_token"] == pytest.approx(same, abs=0.005)
    assert same < 1.0
    assert report["modes"]["oracle"]["same_token"] == 1.0
    divergence = (np.exp(dense) * (dense - predicted)).sum(2).mean()
    found = report["modes"]["predicted"]["divergence_nats"]
    assert found == pytest.approx(divergence, rel=0.01)


def test_errors_layer_by_layer(report, expected):
    for layer, found in enumerate(report["layers"]):
        margins, named = expected["margins"][layer], expected["named"][layer]
        active = margins > 0
        missed = active & ~named
        assert found["active"] == pytest.approx(active.mean(), abs=1e-4)
        assert found["chosen"] == pytest.approx(named.mean(), abs=1e-3)
        share = missed.sum() / active.sum()
        assert found["false_negatives"] == pytest.approx(share, abs=2e-3)
        share = (named & ~active).sum() / (~active).sum()
        assert found["false_positives"] == pytest.approx(share, abs=1e-3)
        share = margins[missed].sum() / margins[active].sum()
        assert found["missed_mass"] == pytest.approx(share, abs=1e-3)
        assert 0.02 < found["false_negatives"] < 0.5
        quantile = report["margins"][layer]["false_negatives"]["quantiles"]["q50"]
        assert quantile == pytest.approx(np.median(margins[missed]), rel=0.05)
    mean = np.mean([layer["false_negatives"] for layer in report["layers"]])
    assert report["mean"]["false_negatives"] == pytest.approx(mean)


def test_windows_are_of_the_neurons_used_in_the_loop(report, expected):
    """Passages follow each other; what was skipped is held but not counted."""
    windows = report["windows"]["predicted"]
    counted = [t for t in range(PASSAGES * LENGTH) if t % LENGTH >= SKIP]
    for layer, used in enumerate(expected["used"]):
        sets = [set(np.flatnonzero(row).tolist()) for row in used]
        for k in (1, 5, 20):
            held = [len(set().union(*sets[max(0, t - k + 1) : t + 1])) for t in counted]
            loads = [len(sets[t] - set().union(*sets[max(0, t - k) : t])) for t in counted]
            assert windows["s_agg"][layer][k - 1] == pytest.approx(np.mean(held), rel=5e-3)
            assert windows["loads"][layer][k - 1] == pytest.approx(np.mean(loads), rel=2e-2)
    assert windows["mean_share_held"][4] == pytest.approx(np.mean(windows["s_agg"], 0)[4] / 320)
    assert set(report["windows"]) == {"oracle", "predicted"}


def test_friends_are_of_the_true_activity(report, expected):
    for layer, found in enumerate(report["friends"]):
        active = expected["margins"][layer] > 0
        uses = active.sum(0)
        together = (active.T.astype(int) @ active.astype(int)).astype(float)
        np.fill_diagonal(together, -1)
        best = together.max(1)[uses >= 10] / uses[uses >= 10]
        # A sample of 256 of 320 neurons, and no more than a tenth of them left out.
        assert found["rank"]["1"]["mean"] == pytest.approx(best.mean(), abs=0.02)


def test_the_same_text_and_seed_give_the_same_report(directory, text, report):
    with EvaluatedModel.open(directory, None) as model:
        again = evaluate_text(model, text, TextSettings(skip=SKIP), SilentProgress())
    assert again == report


def test_without_predictors_dense_and_oracle_remain(sparse_model, text):
    with EvaluatedModel.open(sparse_model, "all") as model:
        found = evaluate_text(model, text, TextSettings(tokens=300), SilentProgress())
    assert list(found["modes"]) == ["dense", "oracle"]
    assert set(found["mean"]) == {"active"}
    assert found["margins"][0]["false_negatives"] is None
    assert set(found["windows"]) == {"oracle"}
    assert found["tokens"] == 300


def test_a_model_that_is_never_zero_has_a_perplexity(tmp_path, text):
    model = tiny("llama", hidden_act="silu", intermediate_size=60, num_key_value_heads=2)
    convert(save_opt(model, tmp_path / "source"), tmp_path / "converted")
    with EvaluatedModel.open(tmp_path / "converted", None) as opened:
        found = evaluate_text(opened, text, TextSettings(), SilentProgress())
        assert opened.selector is None
    assert list(found["modes"]) == ["dense"]
    assert "windows" not in found


def test_a_resident_gate_errs_nowhere(tmp_path, text):
    model = tiny("llama", hidden_act="relu", intermediate_size=60, num_key_value_heads=2)
    convert(save_opt(model, tmp_path / "source"), tmp_path / "converted")
    with EvaluatedModel.open(tmp_path / "converted", None) as opened:
        found = evaluate_text(opened, text, TextSettings(), SilentProgress())
        assert opened.selector == "gate"
    assert list(found["modes"]) == ["dense", "oracle", "gate"]
    assert found["mean"]["false_negatives"] == pytest.approx(0.0, abs=1e-4)
    assert found["modes"]["gate"]["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert found["mean"]["chosen"] == pytest.approx(found["mean"]["active"], abs=1e-4)


def read(path, **settings):
    return read_passages(path, ByteTokenizer(), LIMITS, TextSettings(**settings), SilentProgress())


def test_answers_count_and_questions_do_not(tmp_path):
    path = tmp_path / "c.jsonl"
    talks = [conversation("ab", "cde", "f", "gh")] * 40
    path.write_text("\n".join(str(talk).replace("'", '"') for talk in talks))
    passage = read(path).passages[0]
    letters = [10 + byte for byte in b"cde"]
    kept = [i for i, counts in zip(passage.ids, passage.counted, strict=True) if counts]
    assert kept == [*letters, 4, *(10 + byte for byte in b"gh"), 4]
    assert read(path, all_tokens=True).passages[0].counted.all()


def test_an_expected_answer_ends_its_conversation(tmp_path):
    path = tmp_path / "c.jsonl"
    line = '{"messages": [{"role": "user", "content": "ab"}], "expected": "xyz"}'
    path.write_text("\n".join([line] * 100))
    passage = read(path).passages[0]
    kept = [i for i, counts in zip(passage.ids, passage.counted, strict=True) if counts]
    assert kept == [*(10 + byte for byte in b"xyz"), 4]


def test_lines_are_taken_from_everywhere_and_kept_in_order(tmp_path):
    path = tmp_path / "t.ids"
    path.write_text("\n".join(" ".join([str(n)] * 30) for n in range(100)))
    text = read(path, tokens=600)
    firsts = [passage.ids[0] for passage in text.passages]
    assert len(firsts) == 20
    assert firsts == sorted(firsts)
    assert firsts[0] < 10
    assert firsts[-1] > 90
    assert text.tokens == 600


def test_long_passages_are_cut_and_each_is_skipped_into(tmp_path):
    path = tmp_path / "t.ids"
    path.write_text(" ".join(["1", *(str(5 + n % 200) for n in range(599))]))
    text = read(path, skip=5)
    assert [len(p.ids) for p in text.passages] == [128, 128, 128, 128, 92]
    assert all(p.ids[0] == 1 for p in text.passages)
    assert [i for p in text.passages for i in p.ids[1:]] == [5 + n % 200 for n in range(599)]
    assert text.counted == 604 - 25


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.txt", b"", "empty"),
        ("t.jsonl", b"\n \n", "empty"),
        ("t.txt", b"a few words", f"too few to evaluate on; give at least {TOKENS_MIN}"),
        ("t.txt", b"good\xff\xfebad" * 500, r"not UTF-8 text \(byte 4\)"),
        ("t.jsonl", b"[1, 2\n", "line 1: not JSON"),
        ("t.jsonl", b'{"messages": []}', "line 1: expected a list of messages"),
        ("t.ids", b"1 2 3\n4 five", "line 2: expected token ids"),
        ("t.ids", b"1 300", "line 1: a token id beyond the vocabulary of 300"),
    ],
)
def test_bad_texts_are_refused(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "calibration" not in str(caught.value)


def test_a_text_needs_a_tokenizer_or_to_be_ids(tmp_path, sparse_model):
    path = tmp_path / "t.txt"
    path.write_text("word " * 1_000)
    with (
        EvaluatedModel.open(sparse_model, None) as model,
        pytest.raises(UsageError, match=r"no tokenizer; give token ids in a \.ids file"),
    ):
        evaluate_text(model, path, TextSettings(), SilentProgress())


def test_skipping_everything_leaves_too_little(tmp_path):
    path = tmp_path / "t.ids"
    path.write_text("\n".join(" ".join(["7"] * 50) for _ in range(50)))
    with pytest.raises(UsageError, match="0 tokens that count"):
        read(path, skip=50)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        read(tmp_path / "absent.txt")
