"""A machine with a device (a GPU), DRAM and flash, by its sizes and rates; in files of JSON.

`machines/` has those that are known by name, in the same form as a file of the user's. Rates that
are left out are the general ones of their kind. Source: FlexGen, arXiv 2303.06865, A.3, with the
pieces that its authors' fits distinguish.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashllm.errors import UsageError
from flashllm.untrusted.strict_fields import from_plain
from flashllm.untrusted.strict_json import parse_object

MACHINES = Path(__file__).with_name("machines")
FILE_BYTES_MAX = 4 << 20
_LEAST, _MOST = 1.0, 1e30
"""Of all sizes and rates; beyond them sums and quotients would overflow or vanish."""


@dataclass(frozen=True, slots=True)
class TieredMachine:
    """Bytes of each tier, bytes a second between them, and operations a second."""

    name: str
    device_bytes: float
    dram_bytes: float
    flash_bytes: float
    dram_to_device_bytes_per_second: float
    device_to_dram_bytes_per_second: float
    flash_read_bytes_per_second: float
    flash_write_bytes_per_second: float
    device_flops_per_second: float
    """Products with weights."""
    device_attention_flops_per_second: float
    cpu_attention_flops_per_second: float
    """Attention to keys and values that are in DRAM."""
    device_to_dram_kv_bytes_per_second: float | None = None
    flash_read_kv_bytes_per_second: float | None = None
    flash_write_kv_prefill_bytes_per_second: float | None = None
    flash_write_kv_decode_bytes_per_second: float | None = None
    device_decode_flops_per_second: float | None = None
    device_decode_attention_flops_per_second: float | None = None
    source: str = ""
    """Where the numbers are from."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not _LEAST <= value <= _MOST:
                raise ValueError(
                    f"machine.{field.name}: is {value:g}; expected {_LEAST:g} to {_MOST:g}"
                )

    @property
    def kv_to_dram(self) -> float:
        """Bytes of keys and values a second, from the device to DRAM."""
        return self.device_to_dram_kv_bytes_per_second or self.device_to_dram_bytes_per_second

    @property
    def kv_read(self) -> float:
        """Bytes of keys and values a second, from flash."""
        return self.flash_read_kv_bytes_per_second or self.flash_read_bytes_per_second

    @property
    def kv_write_prefill(self) -> float:
        """Bytes of keys and values of prompts a second, to flash."""
        return self.flash_write_kv_prefill_bytes_per_second or self.flash_write_bytes_per_second

    @property
    def kv_write_decode(self) -> float:
        """Bytes of keys and values of new tokens a second, to flash."""
        return self.flash_write_kv_decode_bytes_per_second or self.flash_write_bytes_per_second

    @property
    def decode_flops(self) -> float:
        """Operations a second of products with weights, for one token of each row."""
        return self.device_decode_flops_per_second or self.device_flops_per_second

    @property
    def decode_attention_flops(self) -> float:
        """Operations a second of attention on the device, for one token of each row."""
        return (
            self.device_decode_attention_flops_per_second or self.device_attention_flops_per_second
        )

    @property
    def limit_bytes(self) -> dict[str, float]:
        """By tier."""
        return {"device": self.device_bytes, "dram": self.dram_bytes, "flash": self.flash_bytes}


def known_machines() -> list[str]:
    """Names of the machines that come with the program."""
    return sorted(path.stem for path in MACHINES.glob("*.json"))


def read_values(path: Path) -> dict[str, Any]:
    """The object in a file; `UsageError` if it cannot be read, is too large, or is no JSON."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"--machine {path}: cannot be read ({error.strerror})") from error
    if len(raw) > FILE_BYTES_MAX:
        raise UsageError(f"--machine {path}: is too large to describe a machine")
    return parse_object(raw, path, UsageError)


def machine_from(values: dict[str, Any], where: str) -> TieredMachine:
    """The machine that plain values describe; `UsageError` names the one that is wrong."""
    try:
        return from_plain(TieredMachine, values, "machine")
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"--machine {where}: {error}; docs/batches.md lists the numbers of a machine"
        ) from error


def known_machine(name: str) -> TieredMachine:
    """One that comes with the program; `name` is one of `known_machines()`."""
    path = MACHINES / f"{name}.json"
    return machine_from(read_values(path), str(path))
