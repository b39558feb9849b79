"""How many bundles tokens use: recorded for this model, or assumed for models of its kind.

`s_agg(k)` is the mean number of distinct bundles that k tokens in a row use (LLM in a flash,
section 3.1). Before a token, a window of k holds what the last k tokens used, so the token loads
`s_agg(k + 1) - s_agg(k)` bundles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import NormalDist, fmean
from typing import Any, NamedTuple

from flashllm.errors import LayoutError
from flashllm.planning.expert_reuse import reuse_growth
from flashllm.spec import ModelSpec, MoeSpec

PAPER_ACTIVE = 0.03
"""Share of the neurons of the paper's first model that are not zero."""
GATED_ACTIVE = 0.11
"""The same where a gate decides: 88.8 to 89.3 % are zero in ProSparse (arXiv 2402.13516)."""
SQUARED_ACTIVE = 0.10
"""The same for squared relu (arXiv 2402.03804)."""
FALSE_NEGATIVES, FALSE_POSITIVES = 0.05, 0.07
"""Errors of the paper's predictors, per active and per inactive neuron."""
ASSUMED_WINDOWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 50, 64)
MOST_OVER_MEAN = 1.25
"""Assumed ratio of the most slots that a text needs to the slots that it needs on average."""
DEVIATIONS_TO_MOST = 4
"""The maximum of some 10 000 values lies about 4 standard deviations above their mean."""
_QUANTILES = [NormalDist().inv_cdf((i + 0.5) / 32) for i in range(32)]
# ln of s_agg(k) over s_agg(1) is a parabola in ln k through the paper's s_agg(1) = 9.6 %,
# s_agg(5) = 24 % and s_agg(6) = 26.4 %.
_PAPER_GROWTH = (0.6126, -0.0268)


class FirstTokens(NamedTuple):
    """The first tokens of an answer, and those of the prompt, before which all slots were empty."""

    prompt: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Activity:
    """Bundles that tokens use, by window and layer."""

    windows: tuple[int, ...]
    """Ascending, from 1 on."""
    s_agg: tuple[tuple[float, ...], ...]
    """For each window, the mean number of distinct bundles used in each layer."""
    slots_needed: tuple[tuple[int, ...], ...]
    """For each window, the largest number of distinct bundles used in each layer."""
    active: tuple[float, ...]
    """Bundles of each layer that one token uses and whose output is not zero."""
    assumed: str = ""
    """A sentence about what is assumed where nothing was recorded; else empty."""

    def of_layers(self, layers: range) -> Activity:
        """The same of some neighbouring layers, counted from the first that has bundles."""
        own = slice(layers.start, layers.stop)
        return replace(
            self,
            s_agg=tuple(row[own] for row in self.s_agg),
            slots_needed=tuple(row[own] for row in self.slots_needed),
            active=self.active[own],
        )

    def used(self, layer: int) -> float:
        """Bundles of a layer that a token uses on average."""
        return self.s_agg[0][layer]

    def used_share(self, bundles: int) -> float:
        """Of the `bundles` of a layer, the share that a token uses, in the mean of all layers."""
        return min(fmean(self.s_agg[0]) / bundles, 1.0)

    def aggregate(self, layer: int, window: float) -> float:
        """`s_agg` of a layer for any window, interpolated by a power law between counted ones."""
        if window <= self.windows[0]:
            return self.s_agg[0][layer] * max(window, 0.0) / self.windows[0]
        for index in range(1, len(self.windows)):
            few, many = self.windows[index - 1], self.windows[index]
            if window <= many:
                low, high = self.s_agg[index - 1][layer], self.s_agg[index][layer]
                if low <= 0:
                    return high * (window - few) / (many - few)
                power = math.log(high / low) / math.log(many / few)
                return low * math.exp(power * math.log(window / few))
        return self.s_agg[-1][layer]

    def increment(self, layer: int, window: float) -> float:
        """Bundles of a layer that a token uses and that the `window` tokens before it did not."""
        last = self.windows[-1]
        if window + 1 > last:
            if len(self.windows) == 1:
                return self.used(layer)  # nothing says what returns: no less than the truth
            # Beyond what was counted the slope only falls: this is no less than the truth.
            window = last - 1
        return max(0.0, self.aggregate(layer, window + 1) - self.aggregate(layer, window))

    def tokens_held(self, layer: int, slots: int, window: int) -> float:
        """The number of last tokens whose bundles fit into `slots`; at most `window`."""
        if self.aggregate(layer, window) <= slots:
            return window
        low, high = 0.0, float(window)
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if self.aggregate(layer, middle) <= slots else (low, middle)
        return low

    def loads(self, layer: int, slots: int, window: int) -> float:
        """Bundles of a layer that a token loads on average, with `slots` slots for `window`."""
        used = self.used(layer)
        if used <= 0:
            return 0.0
        held = max(self.tokens_held(layer, slots, window), 1.0)
        renewed = min(self.increment(layer, held) / used, 1.0)
        # The share of the previous token's bundles that this token uses again.
        returning = 1 - min(self.increment(layer, 1) / used, 1.0)
        sizes = self._sizes(layer)
        return sum(_loaded(size, slots, renewed, returning) for size in sizes) / len(sizes)

    def loads_of_slots(self, layer: int, slots: int, n_bundles: int) -> float:
        """Like `loads`, for policies that evict a bundle only when its slot is needed.

        Computed for recency alone; counting frequency too saves some percent more.
        """
        most = self.s_agg[-1][layer]
        loads = self.loads(layer, min(slots, math.floor(most)), self.windows[-1])
        if slots <= most or n_bundles <= most:
            return loads
        # Beyond the longest window that was counted; with all slots nothing is loaded.
        return loads * (n_bundles - slots) / (n_bundles - most)

    def loads_of_first(
        self, steady: float, layer: int, n_bundles: int, first: FirstTokens
    ) -> float:
        """Bundles that a token loads on average while slots that were empty are filled.

        What no token has used yet is in no slot, however many there are; `steady` is what a token
        loads when the slots are full.
        """
        longest = self.windows[-1]
        counted, loaded, seen = self.s_agg[-1][layer], 0.0, 0.0
        for at in range(first.prompt + first.tokens):
            new = self.increment(layer, float(at))
            if at >= longest and n_bundles > counted:
                # Beyond what was counted, the fewer are left the fewer are new.
                new *= max(n_bundles - seen, 0.0) / (n_bundles - counted)
            seen += new
            if at >= first.prompt:
                loaded += max(new, steady)
        return loaded / first.tokens

    def extra_rounds(self, layer: int, slots: int) -> float:
        """Rounds beyond the first that a token needs in a layer, on average."""
        sizes = self._sizes(layer)
        return sum(max(math.ceil(size / max(slots, 1)) - 1, 0) for size in sizes) / len(sizes)

    def _sizes(self, layer: int) -> list[float]:
        """Equally likely numbers of bundles per token: a normal distribution."""
        used, most = self.used(layer), self.slots_needed[0][layer]
        deviation = max(most - used, 0.0) / DEVIATIONS_TO_MOST
        sizes = [max(used + z * deviation, 0.0) for z in _QUANTILES]
        # A wide distribution is cut off at zero, which would raise its mean.
        mean = sum(sizes) / len(sizes)
        return [size * used / mean for size in sizes] if mean else sizes


def _loaded(size: float, slots: int, renewed: float, returning: float) -> float:
    """Bundles that a token of `size` bundles loads.

    If they fit into the slots, it loads only the new ones. If not, its first round finds what the
    previous token's last round left there, and its other rounds find nothing.
    """
    if size <= slots:
        return size * renewed
    return size - returning * max(2 * slots - size, 0.0)


def recorded(values: dict[str, Any], select: str, spec: ModelSpec, where: str) -> Activity:
    """The activity of a selector in `activity.json`; `LayoutError` if it does not fit the model."""
    try:
        windows = tuple(int(window) for window in values["windows"])
        found = values[select if select in values else "oracle"]
        needed = tuple(tuple(int(n) for n in row) for row in found["slots_needed"])
        s_agg = tuple(tuple(float(n) for n in row) for row in found.get("s_agg", needed))
        exact = values.get("oracle", {}).get("s_agg", s_agg)
        active = tuple(float(n) for n in exact[0])
    except (KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError) as error:
        raise LayoutError(f"{where}: activity.json: {error!r}. Convert again") from error
    rows = (*needed, *s_agg, active)
    fits = len(needed) == len(s_agg) == len(windows) > 0
    fits = fits and all(len(row) == spec.bundled_layers for row in rows)
    fits = fits and all(0 <= n <= spec.bundles_per_layer for row in rows for n in row)
    # Longer windows hold no less.
    fits = fits and all(
        a <= b for few, many in pairwise(s_agg) for a, b in zip(few, many, strict=True)
    )
    if not fits or list(windows) != sorted(set(windows)) or windows[0] != 1:
        raise LayoutError(f"{where}: activity.json does not fit the model. Convert again")
    return Activity(windows, s_agg, needed, active)


def assumed(spec: ModelSpec, select: str, share: float | None = None) -> Activity:
    """The activity assumed for a sparse model, or one of experts, without a recording.

    A token uses `share` of the neurons if that is given, else what models of this kind use. How
    use grows with the window is taken from the paper's first model.
    """
    if spec.experts is not None:
        return _assumed_routing(spec, spec.experts)
    n_bundles = spec.bundles_per_layer
    active, source = _assumed_active(spec)
    used = active
    if select == "predicted":
        used = active * (1 - FALSE_NEGATIVES) + (1 - active) * FALSE_POSITIVES
        source += ", predictors that err as the paper's"
    if share is not None:
        active, used, source = active * min(share / used, 1.0), share, "the share that was given"
    shares = [min(1.0, used * paper_growth(window)) for window in ASSUMED_WINDOWS]
    s_agg = tuple((n_bundles * s,) * spec.n_layers for s in shares)
    needed = tuple(
        (min(n_bundles, math.ceil(n_bundles * s * MOST_OVER_MEAN)),) * spec.bundled_layers
        for s in shares
    )
    words = f"{used:.1%} of the neurons used a token ({source}), and the paper's reuse"
    return Activity(
        ASSUMED_WINDOWS, s_agg, needed, (n_bundles * active,) * spec.bundled_layers, words
    )


def _assumed_routing(spec: ModelSpec, experts: MoeSpec) -> Activity:
    """Each token goes through as many experts as it must, and returns to them as was recorded."""
    used, layers = experts.per_token, range(spec.bundled_layers)
    means: list[tuple[float, ...]] = []
    for window in ASSUMED_WINDOWS:
        grown = [used * reuse_growth(window, used, experts.n_experts, layer) for layer in layers]
        # The law bends, and falls again where a few tokens use all experts.
        before = means[-1] if means else grown
        means.append(
            tuple(
                min(max(now, was), experts.n_experts)
                for now, was in zip(grown, before, strict=True)
            )
        )
    most = [
        tuple(min(math.ceil(mean * MOST_OVER_MEAN), experts.n_experts) for mean in row)
        for row in means[1:]
    ]
    words = f"{used} of {experts.n_experts} experts a token, and the reuse recorded of other models"
    return Activity(
        ASSUMED_WINDOWS,
        tuple(means),
        ((used,) * len(layers), *most),
        (float(used),) * len(layers),
        words,
    )


def paper_growth(window: int) -> float:
    """`s_agg(window) / s_agg(1)` of the paper's first model."""
    return _growth(_PAPER_GROWTH, window)


def _growth(parabola: tuple[float, float], window: int) -> float:
    (rise, bend), logarithm = parabola, math.log(window)
    return math.exp(rise * logarithm + bend * logarithm * logarithm)


def _assumed_active(spec: ModelSpec) -> tuple[float, str]:
    if spec.gated:
        return GATED_ACTIVE, "as of ProSparse"
    if spec.activation == "relu2":
        return SQUARED_ACTIVE, "as is usual for relu2"
    return PAPER_ACTIVE, "3 % active, as the paper's first model"
