"""A target: inputs of one parser, and what must hold whatever they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis.strategies import SearchStrategy

CORPUS = Path(__file__).parents[1] / "corpus"


@dataclass(frozen=True)
class Target:
    """`check(input)` returns if the parser gave a right result or an error of ours, else raises."""

    name: str
    inputs: SearchStrategy[Any]
    check: Callable[[Any], None]


def corpus(name: str) -> list[bytes]:
    """The inputs of a target that are kept, in the order of their names."""
    paths = sorted((CORPUS / name).iterdir())
    assert paths, f"{CORPUS / name}: the corpus is empty"
    return [path.read_bytes() for path in paths]
