"""What is compared: policies by their names, each with every budget."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from flashllm.errors import UsageError
from flashllm.options import KV_VICTIMS, KvDType, KvPolicy, KvSelection

AHEAD = "infinigen-ahead"
POLICIES = ("full", "window", "h2o", "int4", AHEAD, "infinigen", "values", "specache")
"""`int4` sees everything, rounded to 4 bits. `AHEAD` is infinigen without the correction by a
layer's own queries, as the paper has it."""
INT4: KvDType = "int4"


@dataclass(frozen=True, slots=True)
class KvCase:
    """One row of the comparison."""

    name: str
    selection: KvSelection
    kv_dtype: KvDType
    victims: str = ""
    """Who gives way in a pool that holds less than all; "" where it holds all."""

    @property
    def share(self) -> float | None:
        """The budget, or None where everything is seen."""
        return self.selection.share if self.selection.lossy else None


def parse_cases(
    names: Sequence[str],
    budgets: Sequence[float],
    base: KvSelection,
    kv_dtype: KvDType,
    victims: Sequence[str] = (),
) -> list[KvCase]:
    """The rows for policies of these names; full comes first, since the others are held against it.

    With `victims`, infinigen is there once for each of them. `UsageError` for other names.
    """
    for name in names:
        if name not in POLICIES:
            raise UsageError(f"--kv {name}: expected some of {', '.join(POLICIES)}")
    for name in victims:
        if name not in KV_VICTIMS:
            raise UsageError(f"--victims {name}: expected some of {', '.join(KV_VICTIMS)}")
    cases = [KvCase("full", dataclasses.replace(base, policy="full"), kv_dtype)]
    for name in dict.fromkeys(names):
        if name == "int4":
            cases.append(KvCase(name, cases[0].selection, INT4))
        elif name != "full":
            cases += _with_budgets(name, budgets, base, kv_dtype, victims)
    return cases


def _with_budgets(
    name: str,
    budgets: Sequence[float],
    base: KvSelection,
    kv_dtype: KvDType,
    victims: Sequence[str],
) -> Iterator[KvCase]:
    for share in budgets:
        policy = cast("KvPolicy", "infinigen" if name == AHEAD else name)
        selection = dataclasses.replace(
            base, policy=policy, share=share, corrects=base.corrects and name != AHEAD
        )
        if policy != "infinigen" or not victims:
            yield KvCase(name, selection, kv_dtype)
        else:
            yield from (KvCase(f"{name}, {who}", selection, kv_dtype, who) for who in victims)
