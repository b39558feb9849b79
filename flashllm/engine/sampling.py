"""Samples the next token from its logits, and finds where a text has to stop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashllm.errors import ModelError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is sampled; temperature 0 takes the likeliest. Checks its values."""

    temperature: float = 0.0
    top_k: int = 0
    """Sample only from the k likeliest; 0 for all."""
    top_p: float = 1.0
    """The smallest set of the likeliest that holds this share of the probability."""
    min_p: float = 0.0
    """Only tokens at least this likely, relative to the likeliest."""
    repetition_penalty: float = 1.0
    """Logits of tokens seen are divided (or, below zero, multiplied) by it."""
    seed: int = 0

    def __post_init__(self) -> None:
        checks = [
            (0.0 <= self.temperature < math.inf, "temperature", "0 or more"),
            (self.top_k >= 0, "top_k", "0 or more"),
            (0.0 < self.top_p <= 1.0, "top_p", "above 0, at most 1"),
            (0.0 <= self.min_p <= 1.0, "min_p", "0 to 1"),
            (0.0 < self.repetition_penalty < math.inf, "repetition_penalty", "above 0"),
            (0 <= self.seed < 1 << 64, "seed", "0 or more, below 2**64"),
        ]
        for holds, name, expected in checks:
            if not holds:
                raise UsageError(
                    f"sampling: {name} is {getattr(self, name)!r}; expected {expected}"
                )


class Sampler:
    """Samples tokens one after the other; the same seed and logits give the same tokens."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        import numpy as np

        self._sampling = sampling
        self._random = np.random.Generator(np.random.PCG64(sampling.seed))
        self._seen = set(prompt)

    def next(self, logits: NDArray[np.float32]) -> int:
        """The next token; `logits` [vocab] is not changed. `ModelError` for those that are NaN.

        Minus infinity leaves a token out; nothing can be sampled where the largest is infinite.
        """
        if not math.isfinite(logits.max()):  # which is NaN where one of them is
            raise ModelError(
                "the model's logits hold NaN or infinity, of which no token can be sampled: its"
                " weights may be damaged (`flashllm verify` checks them); if they are whole, a"
                " value was too large on the way: try --kv-dtype f32, or convert it with --dtype"
                " f32"
            )
        token = self._draw(self._penalised(logits))
        self._seen.add(token)
        return token

    def skip(self, drawn: Sequence[int]) -> None:
        """Continue after tokens that such a sampler has sampled before."""
        self._seen.update(drawn)
        if self._sampling.temperature != 0.0:
            self._random.random(len(drawn))

    def _penalised(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        import numpy as np

        penalty = self._sampling.repetition_penalty
        if penalty == 1.0:
            return logits
        seen = np.fromiter(sorted(self._seen), dtype=np.int64)
        changed: NDArray[np.float32] = logits.copy()
        values = changed[seen]
        changed[seen] = np.where(values > 0, values / penalty, values * penalty)
        return changed

    def _draw(self, logits: NDArray[np.float32]) -> int:
        import numpy as np

        sampling = self._sampling
        if sampling.temperature == 0.0:
            return int(np.argmax(logits))
        # A stable order makes ties, and so the whole draw, reproducible.
        order = np.argsort(-logits, kind="stable")
        if sampling.top_k:
            order = order[: sampling.top_k]
        scaled = logits[order].astype(np.float64)
        weights = np.exp((scaled - scaled[0]) / sampling.temperature)
        # The order of transformers: top_p counts the tokens that min_p leaves out.
        shares = np.cumsum(weights) / weights.sum()
        count = min(int(np.searchsorted(shares, sampling.top_p)) + 1, len(order))
        count = min(count, int(np.count_nonzero(weights >= sampling.min_p)))
        bounds = np.cumsum(weights[:count])
        drawn = np.searchsorted(bounds, self._random.random() * bounds[-1], side="right")
        return int(order[min(int(drawn), count - 1)])


class StopMatcher:
    """Passes text on until a stop string appears; holds back a possible beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise UsageError("a stop string is empty; leave it out")
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that can be shown now; `stopped` is set when a stop string has come."""
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped = True
            shown, self._held = self._held[: min(found)], ""
            return shown
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        split = len(self._held) - keep
        shown, self._held = self._held[:split], self._held[split:]
        return shown

    def flush(self) -> str:
        """The text that was held back and did not become a stop string."""
        shown, self._held = self._held, ""
        return shown

    def _overlap(self, stop: str) -> int:
        for size in range(min(len(stop) - 1, len(self._held)), 0, -1):
            if self._held.endswith(stop[:size]):
                return size
        return 0
