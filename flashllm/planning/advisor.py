"""Changes that would make a plan's tokens faster, and the ceilings at which something changes.

Every alternative is planned and estimated by the same code as the plan itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Unpack

from flashllm.dtypes import DType
from flashllm.errors import FlashllmError
from flashllm.hardware.machine_profile import Profile
from flashllm.kv_cache.layout import kv_bytes
from flashllm.options import KV_DTYPES, ModelOptions, ModelOverrides
from flashllm.planning.activation_stats import Activity, assumed
from flashllm.planning.latency_model import (
    PROMPT_TOKENS,
    FirstEstimate,
    TokenEstimate,
    expect,
    expect_first,
)
from flashllm.planning.plan import (
    ADVICE_MARGIN_BYTES,
    SHORT_CONTEXT,
    Plan,
    make_plan,
    smaller_options,
    smallest_ceiling,
)
from flashllm.planning.shape_estimate import predictor_bytes, sizes_of_shape
from flashllm.planning.sizes import Sizes
from flashllm.planning.slot_allocation import SLACK, least_slots
from flashllm.planning.token_traffic import PlannedModel
from flashllm.spec import ModelSpec
from flashllm.units import GIB

TIME_SHARE_MAX = 0.97
"""An alternative is listed if a token then takes at most this share of its time."""
_NARROWER: dict[str, tuple[str, DType]] = {
    "f32": ("weights in 16 bits", "f16"),
    "f16": ("weights in 8 bits, which are rounded", "int8"),
    "bf16": ("weights in 8 bits, which are rounded", "int8"),
    "int8": ("weights in 4 bits, which are rounded much", "int4"),
}
"""For each encoding: a description of one with half the bytes, and its name."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a plan is made of."""

    spec: ModelSpec
    sizes: Sizes
    activity: Activity | None
    options: ModelOptions
    """With a selector."""
    profile: Profile | None
    converted: bool = False

    def plan(self) -> Plan:
        """The plan; raises what `make_plan` raises.

        A converted model is planned as it will be run, from what was recorded. Only for others
        are assumptions used.
        """
        sizes = self.sizes
        if self.activity is not None and not self.converted:
            sizes = dataclasses.replace(sizes, activity=self.activity)
        return make_plan(self.spec, sizes, self.options, self.profile)

    def having(self, **overrides: Unpack[ModelOverrides]) -> Scenario:
        """The same with some options changed."""
        return dataclasses.replace(self, options=self.options.having(**overrides))

    def expect(
        self, plan: Plan, flash_speed: float = 1.0, prompt_tokens: int = PROMPT_TOKENS
    ) -> TokenEstimate:
        """The estimate for a plan of this scenario, after a prompt of so many tokens."""
        return expect(
            self._model, plan, self.profile, prompt_tokens=prompt_tokens, flash_speed=flash_speed
        )

    def expect_first(self, plan: Plan) -> FirstEstimate | None:
        """The estimate for the first tokens of a run; None where slots make no difference."""
        return expect_first(self._model, plan, self.profile)

    @property
    def _model(self) -> PlannedModel:
        sizes = self.sizes
        return PlannedModel(
            self.spec, sizes.stride, sizes.predictors, self.activity, sizes.predictor_dtype
        )


@dataclass(frozen=True, slots=True)
class Advice:
    """A change, and the seconds that a token takes with it."""

    change: str
    token_seconds: float


@dataclass(frozen=True, slots=True)
class Encoding:
    """Weights in fewer bits, and other options where those alone are not enough."""

    change: str
    smallest_bytes: int
    fits: bool
    """Whether the scenario's ceiling is enough then."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Ceilings at which something changes, in bytes."""

    smallest: int
    cliff: int | None
    """Below it the slots do not hold what one token uses, so no bundle stays for the next token;
    None where every neuron is used, and where the least slots hold all experts of a token."""
    whole: int
    """From it on, everything is in memory and nothing is read."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


def ceilings(scenario: Scenario, plan: Plan) -> Ceilings:
    """The ceilings for a plan's settings, whatever ceiling the plan itself has."""
    spec, sizes, stride = scenario.spec, scenario.sizes, scenario.sizes.stride
    fixed = sum(plan.split.values()) - plan.split["slots"]
    whole = fixed + spec.bundled_layers * spec.bundles_per_layer * stride
    if sizes.may_leave_embedding(scenario.options):
        # In memory where all is, and on flash where little is.
        more = sizes.embeddings - sizes.with_embedding_on_flash(spec).embeddings
        whole += more if plan.embedding_on_flash else 0
        fixed -= 0 if plan.embedding_on_flash else more
    if plan.select in ("all", "router") or scenario.activity is None:
        return Ceilings(plan.smallest_bytes, None, whole)
    least = least_slots(spec, plan.select)
    needed = (int(n * SLACK) + 1 for n in scenario.activity.slots_needed[0])
    slots = sum(max(least, min(n, spec.bundles_per_layer)) for n in needed)
    return Ceilings(plan.smallest_bytes, fixed + slots * stride, whole)


def advise(scenario: Scenario, plan: Plan, expected: TokenEstimate) -> list[Advice]:
    """What helps, most first; an empty list without a profile."""
    if expected.token is None:
        return []
    found = []
    for change, other, speed in _alternatives(scenario, plan):
        try:
            token = other.expect(other.plan(), speed).token
        except FlashllmError:
            continue
        if token is not None and token.total <= TIME_SHARE_MAX * expected.token.total:
            found.append(Advice(change, token.total))
    return sorted(found, key=lambda advice: advice.token_seconds)


def narrower_encodings(scenario: Scenario) -> list[Encoding]:
    """Encodings of fewer bits, the most bits first, each with the least that makes it fit.

    The last one needs the least memory of all, whether that fits or not.
    """
    ceiling_bytes = scenario.options.memory
    found, dtype = [], scenario.spec.dtype
    while (narrower := _NARROWER.get(dtype)) is not None:
        words, dtype = narrower
        spec = dataclasses.replace(scenario.spec, dtype=dtype, resident_dtype=None)
        sizes = _resized(spec, scenario.sizes)
        how = f"{words}: {_convert_words(scenario)}--dtype {dtype}"
        choices = [(how, scenario.options)]
        choices += [
            (f"{how} {flags}", options)
            for flags, options in smaller_options(spec, scenario.options)
        ]
        tried = []
        for change, options in choices:
            smallest = smallest_ceiling(spec, sizes, options, scenario.profile)
            fits = ceiling_bytes is None or smallest + ADVICE_MARGIN_BYTES <= ceiling_bytes
            tried.append(Encoding(change, smallest, fits))
            if fits:
                break
        found.append(tried[-1])
    return found


def _convert_words(scenario: Scenario) -> str:
    return "convert it again with " if scenario.converted else ""


def _alternatives(scenario: Scenario, plan: Plan) -> Iterator[tuple[str, Scenario, float]]:
    """(description, changed scenario, how many times faster the disk is) of each alternative."""
    spec = scenario.spec
    larger = plan.ceiling_bytes + GIB
    yield f"1 GiB more memory: --memory {larger >> 20}MiB", scenario.having(memory=larger), 1.0
    yield "a disk twice as fast", scenario, 2.0
    if scenario.options.window is not None:
        usual = scenario.having(window=None, policy=None)
        yield "the usual policy in all slots that there is room for: no --window", usual, 1.0
    if scenario.options.overlap is not None:
        words = "more computed while neurons are read: no --overlap"
        yield words, scenario.having(overlap=None), 1.0
    if plan.context > SHORT_CONTEXT:
        shorter = scenario.having(context=SHORT_CONTEXT)
        yield f"a shorter context: --ctx-size {SHORT_CONTEXT}", shorter, 1.0
    for kv_dtype in KV_DTYPES:
        # Fewer bytes to move, and room for slots; int8 rounds more, and says so.
        if kv_bytes(spec, plan.context, kv_dtype) < kv_bytes(spec, plan.context, plan.kv_dtype):
            rounded = ", which rounds them" if kv_dtype in ("int8", "int4") else ""
            words = f"keys and values in {kv_dtype}{rounded}: --kv-dtype {kv_dtype}"
            yield words, scenario.having(kv_dtype=kv_dtype), 1.0
    if (narrower := _NARROWER.get(spec.dtype)) is not None and spec.resident_dtype is None:
        words, dtype = narrower
        half = dataclasses.replace(spec, dtype=dtype)
        sizes = _resized(half, scenario.sizes)
        how = f"convert it with --dtype {dtype}" if scenario.converted else f"--dtype {dtype}"
        yield f"{words}: {how}", dataclasses.replace(scenario, spec=half, sizes=sizes), 1.0
    if spec.sparse and not spec.gated and scenario.options.select != "predicted":
        sizes = dataclasses.replace(scenario.sizes, predictors=predictor_bytes(spec))
        activity = assumed(spec, "predicted")
        other = dataclasses.replace(
            scenario.having(select="predicted"), sizes=sizes, activity=activity, converted=False
        )
        yield "predictors, which are lossy: convert it with --predictors train", other, 1.0


def _resized(spec: ModelSpec, sizes: Sizes) -> Sizes:
    """Sizes for another encoding; those of the predictors and the recording stay the same."""
    return dataclasses.replace(
        sizes_of_shape(spec, sizes.interpreter),
        predictors=sizes.predictors,
        tokenizer=sizes.tokenizer,
        activity=sizes.activity,
    )
