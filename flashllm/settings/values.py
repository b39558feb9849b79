"""Parsers of values from flags, variables and config.toml."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path

from flashllm.errors import UsageError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) *([kmgt]?)(i?)(b?)", re.IGNORECASE)
_MEMORY_BYTES_MIN = 1 << 20
"""Fewer bytes run nothing, so such a number lacks its unit."""
_GIBIBYTES_LIKELY = 256
"""Below it, a number without a unit may be one of gibibytes."""


def parse_size(text: str) -> int:
    """Bytes in `4GiB`, `800MB` (powers of 1000), `512M` (powers of 1024) or `1000000`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        raise UsageError(f"{text!r} is not a size; write it like 4GiB, 800MB or 512M")
    unit = match[2].lower()
    binary = bool(match[3]) or (bool(unit) and not match[4])
    factor = 1024 ** " kmgt".index(unit) if binary and unit else _UNITS[unit]
    return int(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor


def parse_memory(text: str) -> int:
    """The same, of memory to run in; so few bytes that nothing runs lack a unit."""
    size, number = parse_size(text), text.strip()
    if number.replace(".", "", 1).isdecimal() and 0 < size < _MEMORY_BYTES_MIN:
        likely = f"{number}GiB or {number}MiB" if size < _GIBIBYTES_LIKELY else f"{number}MiB"
        raise UsageError(f"{number} has no unit; did you mean {likely}?")
    return size


def bytes_of(size: int | str, name: str) -> int:
    """Memory from Python code: bytes, or a text as above. `name` is for the `UsageError`."""
    if isinstance(size, str):
        try:
            return parse_memory(size)
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from error
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise UsageError(
            f'{name} is {size!r}; expected bytes, as in {name}=8 << 30, or a text like "8GiB"'
        )
    if 0 < size < 1024:
        raise UsageError(f'{name} is {size} bytes; did you mean {name}="{size}GiB"?')
    return size


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


def parse_seed(text: str) -> int:
    """A whole number of 64 bits."""
    number = parse_count(text)
    if number >= 1 << 64:
        raise UsageError(f"{text!r} is too large; expected less than 2**64")
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
    """A share above 0 and at most 1, like `0.1` or `10%`."""
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


def parse_device(text: str) -> str:
    """The name of a device of torch, or none; whether there is one shows when a model is opened."""
    name = text.strip().lower()
    if not re.fullmatch(r"none|mps|cpu-torch|cuda(:[0-9]{1,3})?", name):
        raise UsageError(f"{text!r} is no device; expected cuda, cuda:N, mps, cpu-torch or none")
    return name


def parse_path(text: str) -> str:
    """A path, `~` and `~name` filled in."""
    return os.path.expanduser(text)


def parse_folders(text: str) -> tuple[Path, ...]:
    """Folders, separated as in PATH."""
    return tuple(Path(parse_path(part)) for part in text.split(os.pathsep) if part)


def number_between(
    least: float, most: float = math.inf, *, above: bool = False
) -> Callable[[str], float]:
    """A parser of numbers from `least` to `most`; with `above`, greater than `least`."""
    words = f"above {least:g}" if above else f"{least:g} or more"
    words += "" if most == math.inf else f", at most {most:g}"

    def parse(text: str) -> float:
        number = parse_number(text)
        if number < least or number > most or (above and number == least):
            raise UsageError(f"{text!r} is out of range; expected {words}")
        return number

    return parse


def one_of(*names: str) -> Callable[[str], str]:
    """A parser of one of these names."""

    def parse(text: str) -> str:
        if text not in names:
            raise UsageError(f"{text!r} is unknown; expected one of {', '.join(names)}")
        return text

    return parse
