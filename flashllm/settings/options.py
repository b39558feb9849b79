"""All options that can be set in several places: by a flag, a variable or a line of config.toml.

Only data: `cli.shared.flags` makes flags of them, `settings.resolve` decides which place wins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flashllm.options import (
    ARITHMETICS,
    DEFAULT_ARITHMETIC,
    DEFAULT_CONTEXT,
    DEFAULT_EXPERT_OVERLAP,
    DEFAULT_IO_THREADS,
    DEFAULT_KV_DTYPE,
    DEFAULT_KV_POLICY,
    DEFAULT_KV_SELECTION,
    DEFAULT_KV_VICTIMS,
    DEFAULT_MAX_TOKENS,
    DEFAULT_OVERLAP,
    DEFAULT_POLICY,
    DEFAULT_PROMPT_NEURONS,
    DEFAULT_VERIFY,
    EFFORTS,
    KV_DTYPES,
    KV_POLICIES,
    KV_VICTIMS,
    OVERLAPS,
    POLICIES,
    PROMPT_NEURONS,
    SELECTORS,
    THINKS,
    VERIFIES,
)
from flashllm.settings.values import (
    number_between,
    one_of,
    parse_count,
    parse_device,
    parse_flag,
    parse_folders,
    parse_memory,
    parse_path,
    parse_positive,
    parse_seed,
    parse_share,
    parse_size,
)


@dataclass(frozen=True, slots=True)
class Option:
    """One option, set by `flags` of the command line or FLASHLLM_`name` in the environment."""

    name: str
    flags: tuple[str, ...]
    parse: Callable[[str], Any]
    default: Any
    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    """All allowed values, if they are names."""
    table: str = ""
    """Table in config.toml; empty for the top level."""
    in_file: bool = True
    """Whether config.toml may set it."""
    usual: Any = None
    """What holds while nothing sets it, where `default` leaves the choice to others."""
    unset: str = ""
    """The same in words, where it depends on the model or the machine."""

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return f"FLASHLLM_{self.name.upper()}"

    @property
    def key(self) -> str:
        """Its name in config.toml: `memory`, `chat.theme`."""
        return f"{self.table}.{self.name}" if self.table else self.name

    @property
    def is_flag(self) -> bool:
        """Whether it is yes or no."""
        return self.parse is parse_flag

    @property
    def is_list(self) -> bool:
        """Whether it holds several values."""
        return self.parse is parse_folders

    @property
    def is_number(self) -> bool:
        """Whether config.toml may write it without quotes."""
        return not (self.is_flag or self.is_list or self.choices or self.parse in (str, parse_path))


def _choice(
    name: str,
    flag: str,
    choices: tuple[str, ...],
    text: str,
    metavar: str,
    usual: str | None = None,
    unset: str = "",
) -> Option:
    parse = one_of(*choices)
    return Option(name, (flag,), parse, None, text, metavar, choices, usual=usual, unset=unset)


MODEL = Option(
    "model",
    (),
    parse_path,
    None,
    "a converted model: its name in `flashllm ls`, or its directory (default: the demo)",
    "MODEL",
    usual="demo",
)
MODEL_OPTIONS = (
    Option(
        "memory",
        ("--memory",),
        parse_memory,
        None,
        "ceiling for the memory of the whole program (of the chat: both its processes), like 4GiB"
        " (default: three quarters of what is available)",
        "SIZE",
        unset="three quarters of what is available when a model is opened",
    ),
    Option(
        "ctx_size",
        ("-c", "--ctx-size"),
        parse_positive,
        None,
        "tokens that the context holds (default: what the model allows, up to 2048)",
        "N",
        unset=f"{DEFAULT_CONTEXT}, or what the model allows where that is less",
    ),
    _choice(
        "policy",
        "--policy",
        POLICIES,
        "which neurons stay in memory: blend (of frequency and recency, the default), frequency,"
        " lru2, lru, or window, the paper's",
        "NAME",
        DEFAULT_POLICY,
    ),
    _choice(
        "kv_dtype",
        "--kv-dtype",
        KV_DTYPES,
        "encoding of keys and values in memory: f32, f16 (the default), int8, which halves them"
        " again and rounds more, or int4, which halves them once more",
        "TYPE",
        DEFAULT_KV_DTYPE,
    ),
    Option(
        "kv_memory",
        ("--kv-memory",),
        parse_memory,
        None,
        "memory for keys and values, a part of --memory; what does not fit goes to disk and is read"
        " for each token, so that long contexts fit (default: all in memory)",
        "SIZE",
        unset="as much as the context takes",
    ),
    Option(
        "kv_dir",
        ("--kv-dir",),
        parse_path,
        None,
        "directory for keys and values that go to disk (default: where the model is)",
        "DIR",
        unset="where the model is, or where caches are if that cannot be written to",
    ),
    _choice(
        "kv_victims",
        "--kv-victims",
        KV_VICTIMS,
        "which keys and values go to disk first: fifo (the oldest; the default), lru (the least"
        " recently fetched) or counter (the least often fetched); with --kv-policy infinigen,"
        " which fetches some; no answer depends on it",
        "WHICH",
        DEFAULT_KV_VICTIMS,
    ),
    Option(
        "keep_kv",
        ("--keep-kv",),
        parse_size,
        None,
        "keep keys and values of conversations on disk, up to SIZE of them, so that one is gone on"
        " with at once after a restart; 0 removes them (default: none are kept)",
        "SIZE",
        unset="neither kept nor looked for",
    ),
    _choice(
        "kv_policy",
        "--kv-policy",
        KV_POLICIES,
        "which keys and values a token of an answer sees: full (all, the default), or (lossy)"
        " infinigen (those found a layer ahead to matter), window (the last ones), h2o (those with"
        " the most attention so far), values (all keys, and the values of the best scores)",
        "NAME",
        DEFAULT_KV_POLICY,
    ),
    Option(
        "kv_budget",
        ("--kv-budget",),
        parse_share,
        None,
        "with another --kv-policy than full: the most of all keys and values that a token sees"
        f" ({DEFAULT_KV_SELECTION.share:.0%})".replace("%", "%%"),
        "SHARE",
        usual=DEFAULT_KV_SELECTION.share,
    ),
    Option(
        "kv_alpha",
        ("--kv-alpha",),
        number_between(0, 100, above=True),
        None,
        "with --kv-policy infinigen: how far below the best score a token may be, to begin with"
        f" ({DEFAULT_KV_SELECTION.alpha:g})",
        "X",
        usual=DEFAULT_KV_SELECTION.alpha,
    ),
    Option(
        "kv_recall",
        ("--kv-recall",),
        number_between(0, 1),
        None,
        "with --kv-policy infinigen: the share of attention that --kv-alpha is steered to, layer by"
        f" layer; 0 leaves it as it is ({DEFAULT_KV_SELECTION.recall:g})",
        "SHARE",
        usual=DEFAULT_KV_SELECTION.recall,
    ),
    Option(
        "spec_start_layer",
        ("--spec-start-layer",),
        parse_positive,
        None,
        "with another --kv-policy than full: the first layer that does not see everything, counted"
        f" from 0 ({DEFAULT_KV_SELECTION.start_layer})",
        "N",
        usual=DEFAULT_KV_SELECTION.start_layer,
    ),
    Option(
        "window",
        ("--window",),
        parse_positive,
        None,
        "with the policy window, which it implies: keep the neurons of the last N tokens (default:"
        " from the memory)",
        "N",
        unset="where the policy is window, as many as the memory allows",
    ),
    _choice(
        "select",
        "--select",
        SELECTORS,
        "how active neurons are found: gate, all, oracle (exact), or predicted (lossy; the default"
        " of a model converted with predictors)",
        "HOW",
        unset="predicted where a model has predictors, else gate where it has one, else all",
    ),
    _choice(
        "prompt_neurons",
        "--prompt-neurons",
        PROMPT_NEURONS,
        "which neurons compute a prompt where those of an answer are predicted: exact (all), or"
        " selected (those predicted for each of its tokens; sooner, and lossy; the default)",
        "WHICH",
        DEFAULT_PROMPT_NEURONS,
    ),
    _choice(
        "arithmetic",
        "--arithmetic",
        ARITHMETICS,
        "how vectors are rounded that weights in int8, int4 or mxfp4 are multiplied with: exact"
        " (14 bits; the default), or fast (7 bits; prompts sooner, and lossy)",
        "HOW",
        DEFAULT_ARITHMETIC,
    ),
    Option(
        "io_threads",
        ("--io-threads",),
        parse_positive,
        None,
        "reading threads (default: from the profile of the disk, else 32)",
        "N",
        unset=f"as the profile of the disk says, else {DEFAULT_IO_THREADS}",
    ),
    _choice(
        "overlap",
        "--overlap",
        OVERLAPS,
        "what is computed while neurons are read: none, hits, attention, layer (each more than the"
        " one before; the default is the last, of most experts hits); no answer depends on it",
        "WHAT",
        unset=f"{DEFAULT_OVERLAP}, of experts whose routers read behind attention"
        f" {DEFAULT_EXPERT_OVERLAP}",
    ),
    _choice(
        "verify",
        "--verify",
        VERIFIES,
        "which weights are held against their checksums: off, first (when a model is opened, and"
        " each neuron the first time that it is read; the default) or always",
        "WHEN",
        DEFAULT_VERIFY,
    ),
    Option(
        "profile",
        ("--profile",),
        parse_path,
        None,
        "what `flashllm bench io` measured of a disk, to plan with (default: what it kept of the"
        " disk that the model is on)",
        "FILE",
        unset="the one that was kept of the disk that the model is on",
    ),
    Option(
        "device",
        ("--device",),
        parse_device,
        "none",
        "where weights, keys and values lie as far as --device-memory allows, and are multiplied:"
        " cuda, cuda:N, mps (never tested), cpu-torch (torch on the CPU, to try it) or none, the"
        " default",
        "NAME",
    ),
    Option(
        "device_memory",
        ("--device-memory",),
        parse_memory,
        None,
        "with --device: the most memory of it to take; what does not fit stays in --memory and is"
        " computed there (default: nine tenths of what is free there)",
        "SIZE",
        unset="nine tenths of what is free on the device",
    ),
    Option("no_direct", ("--no-direct",), parse_flag, False, "read through the page cache"),
)
PROFILE_OPTIONS = (
    Option(
        "no_quick_profile",
        ("--no-quick-profile",),
        parse_flag,
        False,
        "do not measure the disk for some seconds, in the background, at the first use of a model",
    ),
)
SAMPLING_OPTIONS = (
    Option(
        "max_tokens",
        ("-n", "--max-tokens"),
        parse_positive,
        DEFAULT_MAX_TOKENS,
        f"longest answer ({DEFAULT_MAX_TOKENS})",
        "N",
    ),
    Option(
        "temp",
        ("--temp",),
        number_between(0),
        0.0,
        "temperature; 0, the default, always takes the likeliest token",
        "T",
    ),
    Option("top_k", ("--top-k",), parse_count, 0, "sample from the K likeliest (0: all)", "K"),
    Option(
        "top_p",
        ("--top-p",),
        number_between(0, 1, above=True),
        1.0,
        "sample from the likeliest tokens with probability P in sum (1: all)",
        "P",
    ),
    Option(
        "min_p",
        ("--min-p",),
        number_between(0, 1),
        0.0,
        "least probability of a token, as a share of the likeliest one's (0)",
        "P",
    ),
    Option(
        "repetition_penalty",
        ("--repetition-penalty",),
        number_between(0, above=True),
        1.0,
        "make tokens that already occurred less likely (1: off)",
        "X",
    ),
    Option("seed", ("--seed",), parse_seed, 0, "seed of the random sampling (0)", "N"),
)
REASONING_OPTIONS = (
    Option(
        "think",
        ("--think",),
        one_of(*THINKS),
        "auto",
        "whether a model that can reason does so before it answers: on, off, or auto (the default):"
        " as its chat template has it",
        "WHETHER",
        THINKS,
    ),
    Option(
        "effort",
        ("--effort",),
        one_of(*EFFORTS),
        "auto",
        "how much it reasons, where its chat template takes that: low, medium, high, or auto (the"
        " default)",
        "HOW_MUCH",
        EFFORTS,
    ),
)
ANSWER_OPTIONS = (*SAMPLING_OPTIONS, *REASONING_OPTIONS)
"""How answers are made, which is kept with a conversation."""
SESSION_OPTIONS = (
    Option(
        "continue",
        ("--continue",),
        parse_flag,
        False,
        "go on with the latest conversation",
        in_file=False,
    ),
    Option(
        "session",
        ("--session",),
        str,
        "",
        "go on with this conversation; `flashllm sessions list` shows them",
        "ID|NAME",
        in_file=False,
        unset="a new one",
    ),
)
CHAT_OPTIONS = (
    Option(
        "system",
        ("-s", "--system"),
        str,
        "",
        "system prompt",
        "TEXT",
        table="chat",
        unset="none",
    ),
    Option(
        "no_save",
        ("--no-save",),
        parse_flag,
        False,
        "do not save the conversation",
        table="chat",
    ),
    Option(
        "inline",
        ("--inline",),
        parse_flag,
        False,
        "draw below the shell's prompt instead of filling the terminal",
        table="chat",
    ),
    Option(
        "theme",
        ("--theme",),
        str,
        "",
        "colours, like nord or gruvbox",
        "THEME",
        table="chat",
        usual="textual-dark",
    ),
    Option("show_io", (), parse_flag, False, "show the I/O panel at the start", table="chat"),
    Option(
        "editor",
        (),
        str,
        "",
        "editor for long prompts (default: $VISUAL, $EDITOR)",
        "COMMAND",
        table="chat",
        unset="$VISUAL, else $EDITOR, else vi",
    ),
    Option(
        "model_dirs",
        (),
        parse_folders,
        (),
        "folders in which to look for models",
        "FOLDERS",
        table="chat",
        unset="only the usual one (`flashllm path models`)",
    ),
)
OPTIONS = (
    MODEL,
    *MODEL_OPTIONS,
    *PROFILE_OPTIONS,
    *ANSWER_OPTIONS,
    *SESSION_OPTIONS,
    *CHAT_OPTIONS,
)
