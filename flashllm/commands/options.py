"""Options that several commands share: a flag, else an environment variable, else a default."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from flashllm.errors import UsageError

_Value = TypeVar("_Value")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) *([kmgt]?)(i?)(b?)", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes in `4GiB`, `800MB` (powers of 1000), `512M` (powers of 1024) or `1000000`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        raise UsageError(f"{text!r} is not a size; write it like 4GiB, 800MB or 512M")
    unit = match[2].lower()
    binary = bool(match[3]) or (bool(unit) and not match[4])
    factor = 1024 ** " kmgt".index(unit) if binary and unit else _UNITS[unit]
    return int(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor


def parse_count(text: str) -> int:
    """A whole number, 0 or more."""
    if not re.fullmatch(r"[0-9]{1,20}", text.strip()):
        raise UsageError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def parse_positive(text: str) -> int:
    """A whole number, 1 or more."""
    number = parse_count(text)
    if number < 1:
        raise UsageError(f"{text!r} is too small; 1 is the least")
    return number


def parse_number(text: str) -> float:
    """A finite decimal number."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{text!r} is not a number")
    return number


def parse_share(text: str) -> float:
    """A part of a whole, above 0 and at most 1, as `0.1` or `10%`."""
    stripped = text.strip()
    percent = stripped.endswith("%")
    share = parse_number(stripped.removesuffix("%")) / (100 if percent else 1)
    if not 0 < share <= 1:
        raise UsageError(f"{text!r} is no share; write it like 0.1 or 10%")
    return share


def parse_flag(text: str) -> bool:
    """Yes or no, from the environment."""
    if text.strip().lower() in ("1", "true", "yes", "on"):
        return True
    if text.strip().lower() in ("", "0", "false", "no", "off"):
        return False
    raise UsageError(f"{text!r} is neither 1 nor 0")


def parse_ids(text: str) -> list[int]:
    """Token ids, separated by commas or spaces."""
    return [parse_count(part) for part in re.split(r"[\s,]+", text.strip()) if part]


@dataclass(frozen=True, slots=True)
class Option:
    """One option; `flags` of the command line, and FLASHLLM_`name` in the environment."""

    name: str
    flags: tuple[str, ...]
    parse: Callable[[str], Any]
    default: Any
    help: str
    metavar: str = ""

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return f"FLASHLLM_{self.name.upper()}"

    def resolve(self, given: object, environment: Mapping[str, str]) -> object:
        """The value given on the command line, else the environment's, else the default."""
        if given is not None:
            return given
        text = environment.get(self.variable, "")
        if not text:
            return self.default
        try:
            return self.parse(text)
        except UsageError as error:
            raise UsageError(f"{self.variable}: {error}") from error


MODEL_OPTIONS = (
    Option(
        "memory",
        ("--memory",),
        parse_size,
        None,
        "ceiling for the memory of the whole process, like 4GiB or 800MB",
        "SIZE",
    ),
    Option(
        "ctx_size",
        ("-c", "--ctx-size"),
        parse_positive,
        None,
        "tokens that the context holds (default: what the model and the memory allow)",
        "N",
    ),
    Option(
        "policy",
        ("--policy",),
        str,
        None,
        "which neurons stay in memory: blend (of frequency and recency, the default), frequency,"
        " lru2, lru, or window, the paper's",
        "NAME",
    ),
    Option(
        "kv_dtype",
        ("--kv-dtype",),
        str,
        None,
        "encoding of keys and values in memory: f32, f16 (the default) or int8, which halves them"
        " again and rounds more",
        "TYPE",
    ),
    Option(
        "window",
        ("--window",),
        parse_positive,
        None,
        "with the policy window, which it implies: keep the neurons of the last N tokens (default:"
        " from the memory)",
        "N",
    ),
    Option(
        "select",
        ("--select",),
        str,
        None,
        "how active neurons are found: gate, all, oracle (exact), or predicted (lossy; the default"
        " of a model converted with predictors)",
        "HOW",
    ),
    Option(
        "io_threads",
        ("--io-threads",),
        parse_positive,
        None,
        "threads that read (default: from the profile of the disk, else 32)",
        "N",
    ),
    Option(
        "overlap",
        ("--overlap",),
        str,
        None,
        "what is computed while neurons are read: none, hits, attention, layer (each more than the"
        " one before; the default is the last); no answer depends on it",
        "WHAT",
    ),
    Option(
        "profile",
        ("--profile",),
        str,
        None,
        "what `flashllm bench io` measured of a disk, to plan with (default: what it kept of the"
        " disk that the model is on)",
        "FILE",
    ),
    Option("no_direct", ("--no-direct",), parse_flag, False, "read through the page cache", ""),
)
SAMPLING_OPTIONS = (
    Option("max_tokens", ("-n", "--max-tokens"), parse_positive, 512, "longest answer (512)", "N"),
    Option(
        "temp",
        ("--temp",),
        parse_number,
        0.0,
        "temperature; 0, the default, always takes the likeliest token",
        "T",
    ),
    Option("top_k", ("--top-k",), parse_count, 0, "draw from the K likeliest (0: all)", "K"),
    Option("top_p", ("--top-p",), parse_number, 1.0, "draw from this much probability (1)", "P"),
    Option("min_p", ("--min-p",), parse_number, 0.0, "least probability, of the highest (0)", "P"),
    Option(
        "repetition_penalty",
        ("--repetition-penalty",),
        parse_number,
        1.0,
        "make tokens that were there less likely (1: no)",
        "X",
    ),
    Option("seed", ("--seed",), parse_count, 0, "of the draw (0)", "N"),
)


def argument(parse: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """The same parser, its errors told by argparse together with the flag."""

    def parsed(text: str) -> _Value:
        try:
            return parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


def add_options(parser: argparse.ArgumentParser, title: str, options: tuple[Option, ...]) -> None:
    """Adds a group of options, each with the name of its environment variable."""
    group = parser.add_argument_group(title)
    for option in options:
        keywords: dict[str, Any] = {"dest": option.name, "default": None}
        if option.parse is parse_flag:
            keywords["action"] = "store_true"
        else:
            keywords |= {"type": argument(option.parse), "metavar": option.metavar}
        group.add_argument(*option.flags, help=f"{option.help} [{option.variable}]", **keywords)


def resolve_options(
    arguments: argparse.Namespace, environment: Mapping[str, str] | None = None
) -> None:
    """Fills in, from the environment and the defaults, what the command line left open."""
    environment = os.environ if environment is None else environment
    for option in (*MODEL_OPTIONS, *SAMPLING_OPTIONS):
        if hasattr(arguments, option.name):
            given = getattr(arguments, option.name)
            setattr(arguments, option.name, option.resolve(given, environment))
    if getattr(arguments, "model", "") is None:
        arguments.model = environment.get("FLASHLLM_MODEL") or None
