"""How questions went, and what can be said of a share of them with its standard error."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(slots=True)
class Outcome:
    """One question: by measure and way of computing, what was answered and whether it is right."""

    group: str
    answers: dict[str, dict[str, object]] = field(default_factory=lambda: defaultdict(dict))
    right: dict[str, dict[str, bool]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, measure: str, name: str, answer: object, right: bool) -> None:
        """The answer that a way of computing gave, judged by a measure."""
        self.answers[measure][name] = answer
        self.right[measure][name] = right


def summarize(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Shares of all questions by measure, and those of each group where there are several."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.group].append(outcome)
    report: dict[str, Any] = {"questions": len(outcomes), "measures": _measures(outcomes)}
    if len(groups) > 1:
        report["groups"] = {
            name: {"questions": len(members), "measures": _measures(members)}
            for name, members in groups.items()
        }
    return report


def _measures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {measure: _measure(outcomes, measure) for measure in outcomes[0].right}


def _measure(outcomes: Sequence[Outcome], measure: str) -> dict[str, Any]:
    """Shares right; where there are two ways, their difference question by question as well."""
    names = list(outcomes[0].right[measure])
    right = {
        name: np.array([outcome.right[measure][name] for outcome in outcomes], np.float64)
        for name in names
    }
    report: dict[str, Any] = {
        name: {"right": float(marks.mean()), "stderr": standard_error(marks)}
        for name, marks in right.items()
    }
    if len(names) > 1:
        one, other = names
        differences = right[other] - right[one]
        report["difference"] = float(differences.mean())
        report["difference_stderr"] = standard_error(differences)
        answers = (outcome.answers[measure] for outcome in outcomes)
        report["same_answer"] = float(np.mean([a[one] == a[other] for a in answers]))
    return report


def standard_error(values: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Of a mean, from the spread of its values; 0 where one value cannot show any."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
