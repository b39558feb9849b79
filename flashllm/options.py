"""How a model is opened: its options, their choices and their defaults. Standard library only.

`settings.resolve` makes ModelOptions from flags, environment and config.toml, `library.open` from
keywords of Python code; everything below gets the frozen result.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypedDict, Unpack, get_args

from flashllm.errors import UsageError

Select = Literal["predicted", "gate", "router", "all", "oracle"]
"""What finds the active set: low-rank predictors, which are lossy; or exactly: a resident gate, the
router of experts, all neurons, or the oracle, which reads all and uses those whose output is not
zero."""
SELECTORS: tuple[Select, ...] = get_args(Select)

Policy = Literal["blend", "frequency", "lru2", "lru", "window"]
"""Which bundles stay in DRAM; `window` is the paper's."""
POLICIES: tuple[Policy, ...] = get_args(Policy)
DEFAULT_POLICY: Policy = "blend"

KvDType = Literal["f32", "f16", "int8", "int4"]
"""Encoding of keys and values."""
KV_DTYPES: tuple[KvDType, ...] = get_args(KvDType)
DEFAULT_KV_DTYPE: KvDType = "f16"

KvPolicy = Literal["full", "infinigen", "window", "h2o", "values", "specache"]
"""Which tokens an answer attends to: all; those that were found a layer ahead to matter (Lee et
al., OSDI 2024); the last ones; those with the most attention so far, and the last ones (Zhang et
al., arXiv 2306.14048); those with the best scores, of which all keys are read (Sheng et al., arXiv
2303.06865); or those that a copy of the keys in few bits finds (Jie et al., arXiv
2503.16163). All but the first are lossy."""
KV_POLICIES: tuple[KvPolicy, ...] = ("full", "infinigen", "window", "h2o", "values")
"""Those to answer with; `specache` is there to compare with."""
DEFAULT_KV_POLICY: KvPolicy = "full"

KvVictims = Literal["fifo", "lru", "counter"]
"""Which tokens give way where keys and values are limited."""
KV_VICTIMS: tuple[KvVictims, ...] = get_args(KvVictims)
DEFAULT_KV_VICTIMS: KvVictims = "fifo"

KvIndexDType = Literal["f16", "int8", "int4"]
"""Encoding of the columns of keys that find tokens."""
KV_INDEX_DTYPES: tuple[KvIndexDType, ...] = get_args(KvIndexDType)

Overlap = Literal["none", "hits", "attention", "layer"]
"""What is computed while bundles are read: nothing; products of bundles that are in DRAM; also
attention, while prefetches are under way; also the previous layer."""
OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)
DEFAULT_OVERLAP: Overlap = "layer"
DEFAULT_EXPERT_OVERLAP: Overlap = "hits"
"""Of experts whose router reads what attention gave."""

Verify = Literal["off", "first", "always"]
"""Which weights are held against their checksums when they are read: none; resident weights and
predictors when a model is opened, and each bundle the first time; bundles every time."""
VERIFIES: tuple[Verify, ...] = get_args(Verify)
DEFAULT_VERIFY: Verify = "first"

PromptNeurons = Literal["exact", "selected"]
"""Which neurons compute a prompt: all that are not zero, or those that are selected for each of its
tokens, as for those of an answer."""
PROMPT_NEURONS: tuple[PromptNeurons, ...] = get_args(PromptNeurons)
DEFAULT_PROMPT_NEURONS: PromptNeurons = "selected"

Arithmetic = Literal["exact", "fast"]
"""To how many bits a vector is rounded that is multiplied with matrices or neurons in int8, int4 or
mxfp4: 14, which shows nowhere beside what those weights lost, or 7, which takes half of the
products. Sums are whole numbers and f32 in both."""
ARITHMETICS: tuple[Arithmetic, ...] = get_args(Arithmetic)
DEFAULT_ARITHMETIC: Arithmetic = "exact"


@dataclass(frozen=True, slots=True)
class KvSelection:
    """Which keys and values a token of an answer sees. `UsageError` for what is out of range."""

    policy: KvPolicy = DEFAULT_KV_POLICY
    share: float = 0.2
    """The most tokens that are fetched, as a share of all."""
    alpha: float = 4.0
    """Of infinigen, to begin with: tokens whose score is less than this below the best one."""
    recall: float = 0.95
    """Of infinigen: the share of attention's mass that alpha is steered to; 0 leaves it."""
    start_layer: int = 2
    """Layers before this one see everything."""
    ratio: float = 0.3
    """Of infinigen: the share of columns in the index of keys."""
    index_dtype: KvIndexDType = "int4"
    corrects: bool = True
    """Of infinigen: whether a layer adds what its own queries find to what was guessed ahead."""

    def __post_init__(self) -> None:
        if self.policy not in get_args(KvPolicy):
            raise UsageError(f"--kv-policy {self.policy}: expected one of {', '.join(KV_POLICIES)}")
        for name, value, least, most in (
            ("kv-budget", self.share, 0.0, 1.0),
            ("kv-alpha", self.alpha, 0.0, 100.0),
            ("kv-index-ratio", self.ratio, 0.0, 1.0),
        ):
            if not least < value <= most:
                raise UsageError(f"{name} is {value}; expected more than {least:g}, up to {most:g}")
        if not 0 <= self.recall < 1:
            raise UsageError(f"kv-recall is {self.recall}; expected 0 (off) or more, less than 1")
        if self.start_layer < 1:
            raise UsageError(f"spec-start-layer is {self.start_layer}; expected 1 or more")
        if self.index_dtype not in KV_INDEX_DTYPES:
            known = ", ".join(KV_INDEX_DTYPES)
            raise UsageError(f"kv-index-dtype {self.index_dtype}: expected one of {known}")

    @property
    def lossy(self) -> bool:
        """Whether tokens that have some attention may be left out."""
        return self.policy != "full"


DEFAULT_KV_SELECTION = KvSelection()

Think = Literal["auto", "on", "off"]
"""Whether a model is to reason before it answers; auto leaves it to the model's chat template."""
THINKS: tuple[Think, ...] = get_args(Think)
Effort = Literal["auto", "low", "medium", "high"]
"""How much a model is to reason; auto leaves it to the model's chat template."""
EFFORTS: tuple[Effort, ...] = get_args(Effort)

DEFAULT_IO_THREADS = 32
DEFAULT_CONTEXT = 2048
DEFAULT_MAX_TOKENS = 512
"""Tokens after which an answer ends, unless the caller says otherwise."""


@dataclass(frozen=True, slots=True)
class ReasoningOptions:
    """What the chat template is told of reasoning, where it reads that."""

    think: Think = "auto"
    effort: Effort = "auto"

    def __post_init__(self) -> None:
        """`UsageError` for another word."""
        for name, value, known in (("think", self.think, THINKS), ("effort", self.effort, EFFORTS)):
            if value not in known:
                raise UsageError(f"{name} is {value!r}; it may be {', '.join(known)}")

    def template_variables(self) -> dict[str, bool | str]:
        """Variables of the template by name; those that are left to it are absent."""
        variables: dict[str, bool | str] = {}
        if self.think != "auto":
            variables[THINK_VARIABLE] = self.think == "on"
        if self.effort != "auto":
            variables[EFFORT_VARIABLE] = self.effort
        return variables

    def unread(self, read: Collection[str]) -> list[str]:
        """A sentence for each option that is set and that the template does not read."""
        names = {THINK_VARIABLE: "think", EFFORT_VARIABLE: "effort"}
        return [
            f"this model's template knows no {variable}: {names[variable]} changes nothing"
            for variable in self.template_variables()
            if variable not in read
        ]


THINK_VARIABLE, EFFORT_VARIABLE = "enable_thinking", "reasoning_effort"
"""What chat templates call these options."""
DEFAULT_REASONING = ReasoningOptions()


class KvOverrides(TypedDict, total=False):
    """The fields of ModelOptions that say which keys and values a token of an answer sees."""

    kv_policy: KvPolicy | None
    kv_budget: float | None
    kv_alpha: float | None
    kv_recall: float | None
    spec_start_layer: int | None


class OverridesWithoutMemory(KvOverrides, total=False):
    """The fields of ModelOptions but those of memory, which Python code may also give as text."""

    select: Select | None
    policy: Policy | None
    window: int | None
    io_threads: int | None
    overlap: Overlap | None
    verify: Verify | None
    direct: bool
    context: int | None
    kv_dtype: KvDType | None
    profile: str | os.PathLike[str] | None
    application_bytes: int
    contexts: int
    chunk_tokens: int | None
    prompt_neurons: PromptNeurons | None
    arithmetic: Arithmetic | None
    kv_dir: str | os.PathLike[str] | None
    kv_victims: KvVictims | None
    keep_kv: int | None
    device: str | None


class ModelOverrides(OverridesWithoutMemory, total=False):
    """The fields of ModelOptions, as keywords."""

    memory: int | None
    kv_memory: int | None
    slot_memory: int | None
    device_memory: int | None


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How to open a model; None leaves a choice to the plan."""

    memory: int | None = None
    """Ceiling of the whole process's resident memory, in bytes."""
    select: Select | None = None
    policy: Policy | None = None
    window: int | None = None
    """The paper's window, in tokens; implies the policy `window`."""
    io_threads: int | None = None
    overlap: Overlap | None = None
    verify: Verify | None = None
    direct: bool = True
    """Bypass the page cache, where the file system can."""
    context: int | None = None
    """The most tokens that a context can hold."""
    kv_dtype: KvDType | None = None
    kv_memory: int | None = None
    """The part of the ceiling that keys and values of all contexts take, in bytes; what does not
    fit is on flash, in a file without a name. None: they are all in DRAM."""
    slot_memory: int | None = None
    """The most that weights in slots take of the ceiling, in bytes; None: as much as fits."""
    kv_dir: str | os.PathLike[str] | None = None
    """Directory of that file; None: the model's, or else that of caches."""
    kv_victims: KvVictims | None = None
    """Which pages leave DRAM first; None: FIFO."""
    kv_policy: KvPolicy | None = None
    """Which keys and values a token of an answer sees; this and the next four as `KvSelection`."""
    kv_budget: float | None = None
    kv_alpha: float | None = None
    kv_recall: float | None = None
    spec_start_layer: int | None = None
    profile: str | os.PathLike[str] | None = None
    """A profile to plan with, instead of the one of the model's device."""
    application_bytes: int = 0
    """The part of the ceiling that is left to who opens the model: the chat's other process, what
    an evaluation counts."""
    contexts: int = 1
    """Contexts that may live at once, the default one included."""
    chunk_tokens: int | None = None
    """Tokens of a prompt that go through the layers together."""
    prompt_neurons: PromptNeurons | None = None
    arithmetic: Arithmetic | None = None
    """How vectors are rounded that are multiplied with weights in int8, int4 or mxfp4."""
    keep_kv: int | None = None
    """Bytes on flash for the keys and values of earlier contexts, from which a prompt that begins
    alike goes on; 0 removes those that there are. None neither keeps nor looks."""
    device: str | None = None
    """The device of torch that holds weights, keys and values, as far as `device_memory` allows:
    cuda, cuda:N, mps, or cpu-torch, torch on the CPU in the stead of one. None: there is none."""
    device_memory: int | None = None
    """Bytes of the device that may be taken; None: most of what is free there."""

    def __post_init__(self) -> None:
        for name in (
            "window",
            "io_threads",
            "context",
            "application_bytes",
            "contexts",
            "chunk_tokens",
            "kv_memory",
            "slot_memory",
            "keep_kv",
            "spec_start_layer",
            "device_memory",
        ):
            value = getattr(self, name)
            if value is not None and type(value) is not int:
                raise UsageError(f"{name} is {value!r}; expected a whole number")

    @property
    def kv_selection(self) -> KvSelection:
        """What a token of an answer sees; `UsageError` for what is out of range."""
        given = {
            "policy": self.kv_policy,
            "share": self.kv_budget,
            "alpha": self.kv_alpha,
            "recall": self.kv_recall,
            "start_layer": self.spec_start_layer,
        }
        known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return replace(DEFAULT_KV_SELECTION, **known)

    @property
    def kv_overrides(self) -> KvOverrides:
        """The options that `kv_selection` is of, as they were given."""
        return {
            "kv_policy": self.kv_policy,
            "kv_budget": self.kv_budget,
            "kv_alpha": self.kv_alpha,
            "kv_recall": self.kv_recall,
            "spec_start_layer": self.spec_start_layer,
        }

    def having(self, **overrides: Unpack[ModelOverrides]) -> ModelOptions:
        """A copy with some options changed."""
        return replace(self, **overrides)

    def __repr__(self) -> str:
        """The options that are not at their defaults."""
        changed = [
            f"{field.name}={value!r}"
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        ]
        return f"ModelOptions({', '.join(changed)})"


DEFAULT_OPTIONS = ModelOptions()
