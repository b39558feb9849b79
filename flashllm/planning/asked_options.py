"""What the options ask of a plan, with what is taken where they say nothing; `UsageError` else."""

from __future__ import annotations

from flashllm.errors import UsageError
from flashllm.kv_cache.layout import parse_kv_dtype
from flashllm.options import (
    ARITHMETICS,
    DEFAULT_ARITHMETIC,
    DEFAULT_CONTEXT,
    DEFAULT_EXPERT_OVERLAP,
    DEFAULT_KV_DTYPE,
    DEFAULT_KV_VICTIMS,
    DEFAULT_OVERLAP,
    DEFAULT_POLICY,
    DEFAULT_PROMPT_NEURONS,
    DEFAULT_VERIFY,
    KV_VICTIMS,
    OVERLAPS,
    POLICIES,
    PROMPT_NEURONS,
    VERIFIES,
    Arithmetic,
    KvDType,
    KvVictims,
    ModelOptions,
    Overlap,
    Policy,
    PromptNeurons,
    Verify,
)
from flashllm.spec import ModelSpec

_MAX_CONTEXTS = 1024


def context_of(spec: ModelSpec, options: ModelOptions) -> int:
    """The most tokens that a context can hold with these options."""
    usual = min(DEFAULT_CONTEXT, spec.max_positions)
    return within("ctx-size", options.context, usual, spec.max_positions)


def contexts_of(options: ModelOptions) -> int:
    """How many contexts there may be at once."""
    return within("contexts", options.contexts, 1, _MAX_CONTEXTS)


def encoding_of(options: ModelOptions) -> KvDType:
    """That of keys and values."""
    return parse_kv_dtype(options.kv_dtype or DEFAULT_KV_DTYPE)


def verify_of(options: ModelOptions) -> Verify:
    """When bundles are held against their checksums."""
    if options.verify is not None and options.verify not in VERIFIES:
        raise UsageError(f"--verify {options.verify}: expected one of {', '.join(VERIFIES)}")
    return options.verify or DEFAULT_VERIFY


def prompt_neurons_of(options: ModelOptions) -> PromptNeurons:
    """Which neurons a prompt goes through."""
    name = options.prompt_neurons
    if name is not None and name not in PROMPT_NEURONS:
        raise UsageError(f"--prompt-neurons {name}: expected one of {', '.join(PROMPT_NEURONS)}")
    return name or DEFAULT_PROMPT_NEURONS


def prompt_is_selected(options: ModelOptions) -> bool:
    """Whether tokens of a prompt go through the neurons that a gate or predictors name for them.

    The name of the selector has to be in the options.
    """
    if options.select == "predicted":
        return prompt_neurons_of(options) == "selected"
    return options.select == "gate"


def arithmetic_of(options: ModelOptions) -> Arithmetic:
    """How vectors are rounded for products."""
    name = options.arithmetic
    if name is not None and name not in ARITHMETICS:
        raise UsageError(f"--arithmetic {name}: expected one of {', '.join(ARITHMETICS)}")
    if name == "fast" and options.device is not None:
        raise UsageError("--arithmetic fast is of the CPU's products; leave it out, or --device")
    return name or DEFAULT_ARITHMETIC


def kv_victims_of(options: ModelOptions) -> KvVictims:
    """Which pages of keys and values leave first."""
    name = options.kv_victims or DEFAULT_KV_VICTIMS
    if name not in KV_VICTIMS:
        raise UsageError(f"--kv-victims {name}: expected one of {', '.join(KV_VICTIMS)}")
    return name


def overlap_of(name: Overlap | None, spec: ModelSpec) -> Overlap:
    """What is read while something is computed."""
    if name is not None and name not in OVERLAPS:
        raise UsageError(f"--overlap {name}: expected one of {', '.join(OVERLAPS)}")
    if name is None and spec.experts is not None and spec.experts.router_input == "ffn":
        # Guessed a layer early, megabytes are read in vain where the disk has no time for it.
        return DEFAULT_EXPERT_OVERLAP
    return name or DEFAULT_OVERLAP


def within(name: str, value: int | None, default: int, limit: int) -> int:
    """`value`, or else `default`; `UsageError` unless it is 1 to `limit`."""
    if value is None:
        return default
    if not 1 <= value <= limit:
        raise UsageError(f"{name} is {value}; expected 1 to {limit}")
    return value


def choose_policy(policy: Policy | None, window: int | None) -> Policy:
    """The policy asked for; the paper's if only a window is given; `UsageError` for other names."""
    if policy is None:
        return DEFAULT_POLICY if window is None else "window"
    if policy not in POLICIES:
        raise UsageError(f"--policy {policy}: expected one of {', '.join(POLICIES)}")
    if window is not None and policy != "window":
        raise UsageError(
            f"--window {window} is for the policy window; {policy} keeps what is worth most in all"
            " slots there are. Give --policy window, or no --window"
        )
    return policy
