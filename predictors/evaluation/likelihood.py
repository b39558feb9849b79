"""How likely a text is in each mode, and how far the other modes are from the dense one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashllm.errors import ModelError

KEPT_BYTES_MAX = 64 << 20
"""Of a passage's dense log-probabilities, for the divergence of the others from them."""


def log_probabilities(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Log-softmax of each row, [tokens, vocab]; `ModelError` where a logit is no number."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    sums = np.exp(shifted).sum(axis=1, dtype=np.float64, keepdims=True)
    if not np.isfinite(sums).all():
        raise ModelError(
            "the model's logits are not finite; run `flashllm verify`, then convert it again, with"
            " --dtype f32 or bf16 if it is in f16"
        )
    return np.asarray(shifted - np.log(sums).astype(np.float32))


class DensePassage:
    """The dense pass's log-probabilities of a passage, to compare other passes with."""

    def __init__(self, vocab_size: int) -> None:
        self.negative_logs: list[NDArray[np.float64]] = []
        self.likeliest: list[NDArray[np.int64]] = []
        self.kept: list[NDArray[np.float32]] = []
        self.rows_kept_max = KEPT_BYTES_MAX // (4 * vocab_size)


class LikelihoodMeter:
    """Sums of one mode over the tokens that count."""

    def __init__(self) -> None:
        self.tokens = 0
        self.negative_log = 0.0
        self.same = 0
        self.difference = self.difference_square = 0.0
        self.divergence = 0.0
        self.divergence_tokens = 0

    def add(
        self,
        logits: NDArray[np.float32],
        targets: NDArray[np.int64],
        dense: DensePassage,
        block: int,
    ) -> None:
        """Count rows [tokens, vocab] and the ids that followed; `block` numbers them.

        The dense mode's meter comes first to each block and stores its log-probabilities there.
        """
        logs = log_probabilities(logits)
        rows = np.arange(len(targets))
        negative = -logs[rows, targets].astype(np.float64)
        likeliest = logs.argmax(axis=1)
        if block == len(dense.negative_logs):
            dense.negative_logs.append(negative)
            dense.likeliest.append(likeliest)
            room = dense.rows_kept_max - sum(map(len, dense.kept))
            dense.kept.append(logs[: max(0, room)].copy())
        self.tokens += len(targets)
        self.negative_log += float(negative.sum())
        self.same += int(np.count_nonzero(likeliest == dense.likeliest[block]))
        difference = negative - dense.negative_logs[block]
        self.difference += float(difference.sum())
        self.difference_square += float((difference**2).sum())
        reference = dense.kept[block]
        terms = np.exp(reference) * (reference - logs[: len(reference)])
        self.divergence += float(terms.sum(dtype=np.float64))
        self.divergence_tokens += len(reference)

    @property
    def perplexity(self) -> float:
        """Exponential of the mean negative log-likelihood."""
        return math.exp(min(700.0, self.negative_log / max(1, self.tokens)))

    def to_json(self) -> dict[str, Any]:
        """Perplexity; its ratio to the dense one, with standard error; agreement; divergence.

        The error of the ratio is that of the mean difference per token, so difficulty of the text
        that both modes share cancels out.
        """
        count = max(1, self.tokens)
        mean = self.difference / count
        variance = max(0.0, self.difference_square / count - mean**2) / max(1, count - 1)
        ratio = math.exp(min(700.0, mean))
        return {
            "perplexity": self.perplexity,
            "ratio": ratio,
            "ratio_stderr": ratio * math.sqrt(variance),
            "same_token": self.same / count,
            "divergence_nats": self.divergence / max(1, self.divergence_tokens),
        }
