"""A policy: the size of a block of prompts, and where everything of it is placed.

Source: FlexGen, arXiv 2303.06865, section 4.3 (`bls = gbs x #gb`, and nine shares).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from flashllm.errors import UsageError
from flashllm.planning.batch.placement import Placement

FORM = "gbs,#gb,wg,wc,cg,cc,hg,hc"
_ROWS_MAX = 1 << 20
_TOLERANCE = 1e-9
_NOUNS = {"w": "weights", "c": "keys and values", "h": "activations"}


@dataclass(frozen=True, slots=True)
class Block:
    """Prompts that share each read of a layer."""

    batch_rows: int
    """Prompts that are computed together: gbs."""
    batches: int
    """How many such batches a block has: #gb."""

    @property
    def rows(self) -> int:
        """Prompts of the block: bls."""
        return self.batch_rows * self.batches


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts of one length, and answers of one length."""

    prompt_tokens: int
    new_tokens: int


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """A block, and the placement of what it needs."""

    block: Block
    placement: Placement

    def __str__(self) -> str:
        place = self.placement
        shown = (place.wg, place.wc, place.cg, place.cc, place.hg, place.hc)
        percents = ",".join(_percent(share) for share in shown)
        return f"{self.block.batch_rows},{self.block.batches},{percents}"

    def to_json(self) -> dict[str, Any]:
        """Plain values: the text that `--policy` takes, and each number by name, in percent."""
        names = ("wg", "wc", "wd", "cg", "cc", "cd", "hg", "hc", "hd")
        values = zip(names, self.placement.values, strict=True)
        return {
            "text": str(self),
            "gbs": self.block.batch_rows,
            "num_gb": self.block.batches,
            **{name: float(_percent(share)) for name, share in values},
        }


def parse_batch_policy(text: str) -> BatchPolicy:
    """The policy of `gbs,#gb,wg,wc,cg,cc,hg,hc`: rows, batches, and shares in percent.

    What is neither on the device nor in DRAM is on flash. `UsageError` says which number is wrong.
    """
    words = [word.strip() for word in text.split(",")]
    names = FORM.split(",")
    if len(words) != len(names):
        raise UsageError(f"{text!r}: has {len(words)} numbers; expected {len(names)}: {FORM}")
    rows, batches = (_count(name, word) for name, word in zip(names[:2], words, strict=False))
    if rows * batches > _ROWS_MAX:
        raise UsageError(f"gbs x #gb is {rows * batches}; expected at most {_ROWS_MAX}")
    parts = [_share(name, word) for name, word in zip(names[2:], words[2:], strict=True)]
    shares: list[float] = []
    for kind, device, dram in zip("wch", parts[::2], parts[1::2], strict=True):
        if device + dram > 1 + _TOLERANCE:
            raise UsageError(
                f"{kind}g + {kind}c is {100 * (device + dram):g} % of the {_NOUNS[kind]}; expected"
                " at most 100 (what is left is on flash)"
            )
        shares += [device, dram, max(round(1 - device - dram, 12), 0.0)]
    return BatchPolicy(Block(rows, batches), Placement(*shares))


def _count(name: str, word: str) -> int:
    if not (word.isascii() and word.isdecimal() and len(word) <= 9 and int(word) >= 1):
        raise UsageError(f"{name} is {word!r}; expected a whole number of 1 or more")
    return int(word)


def _share(name: str, word: str) -> float:
    try:
        percent = float(word)
    except ValueError:
        percent = math.nan
    if not 0 <= percent <= 100:
        raise UsageError(f"{name} is {word!r}; expected a percentage of 0 to 100")
    return percent / 100


def _percent(share: float) -> str:
    return f"{round(100 * share, 6) + 0.0:g}"  # never -0
