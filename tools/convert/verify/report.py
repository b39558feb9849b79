"""What `verify` found, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and where: layer, bundle and offset where it is a bundle."""

    file: str
    what: str
    layer: int | None = None
    bundle: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What reading a model through showed."""

    bundles_checked: int
    bytes_checked: int
    seconds: float
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"ok": self.ok} | asdict(self) | {"problems": [asdict(p) for p in self.problems]}
