"""How soon experts are used again: fits the law that a plan assumes to recorded routing.

    python -m benchmarks.expert_reuse RECORDED.csv.gz [RECORDED.csv.gz ...] [--experts 128]

A recording gives the first expert of each token by weight, the first two, and so on: routing at
several shares of the experts, each as a router of fewer experts a token would have it. Counted are
the distinct experts that 1 to 64 tokens in a row use, at most half of the recording. The law is
that of `planning.expert_reuse`; each recording is also held against the law fitted to the others.

*Extended* are the first two thirds of each token's experts, with the others drawn to them as
`benchmarks.synthetic_experts` does where more are wanted than were recorded: how many more experts
some tokens in a row use then than they did.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.expert_slots import activity_of
from benchmarks.own_command import ended
from benchmarks.results import markdown
from benchmarks.synthetic_experts.routing import Recording, extend, read_recording
from flashllm.bench.header import run_header
from flashllm.cli.shared.flags import argument
from flashllm.planning.expert_reuse import REUSE_COEFFICIENTS, reuse_features
from flashllm.settings.values import parse_count

NAME = "expert_reuse"
EXPERTS = 128


class Counted(NamedTuple):
    """What recordings count, for each window, share of experts and layer."""

    features: NDArray[np.float64]
    """[n, features] of the law."""
    growths: NDArray[np.float64]
    """[n], ln of the growth."""

    def fit(self) -> NDArray[np.float64]:
        """The coefficients with the least squares."""
        found = np.linalg.lstsq(self.features, self.growths, rcond=None)[0]
        return np.asarray(found, np.float64)

    def errors(self, coefficients: Sequence[float] | NDArray[np.float64]) -> tuple[float, float]:
        """ln of what a law says over what was counted: its mean, and how it spreads."""
        found = self.features @ np.asarray(coefficients) - self.growths
        return float(found.mean()), float(found.std())


def count(recording: Recording, n_experts: int) -> Counted:
    """The growths of a recording whose experts are ranked by weight."""
    features, growths = [], []
    for used in range(1, recording.sets.shape[2] + 1):
        counted = activity_of(recording.sets[:, :, :used], n_experts, part=2)
        for window, row in zip(counted.windows[1:], counted.s_agg[1:], strict=True):
            for layer, distinct in enumerate(row):
                features.append(reuse_features(window, used / n_experts, layer))
                growths.append(math.log(distinct / used))
    return Counted(np.array(features), np.array(growths))


def extended(recording: Recording, n_experts: int) -> tuple[float, float]:
    """ln of the experts that tokens use whose last ones are drawn, over those recorded."""
    _, tokens, per_token = recording.sets.shape
    random, steps, few = np.random.default_rng(0), np.arange(tokens), 2 * per_token // 3
    drawn = np.stack(
        [extend(random, layer[:, :few], steps, per_token, n_experts) for layer in recording.sets]
    )
    was, now = (activity_of(sets, n_experts, part=2).s_agg for sets in (recording.sets, drawn))
    found = np.log(np.array(now[1:]) / np.array(was[1:]))
    return float(found.mean()), float(found.std())


def together(counted: Sequence[Counted]) -> Counted:
    """What several recordings count."""
    return Counted(*(np.concatenate(parts) for parts in zip(*counted, strict=True)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the fit and a table of errors, and JSON as its last line."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recordings", type=Path, nargs="+", metavar="CSV", help="recorded routing")
    experts = f"experts of a layer, of all recordings ({EXPERTS})"
    parser.add_argument("--experts", type=argument(parse_count), default=EXPERTS, help=experts)
    options = parser.parse_args(arguments)
    names = [path.name for path in options.recordings]
    recordings = [read_recording(path, "slot") for path in options.recordings]
    counted = [count(recording, options.experts) for recording in recordings]
    fitted = together(counted).fit()
    rows = []
    for at, (name, own) in enumerate(zip(names, counted, strict=True)):
        others = [*counted[:at], *counted[at + 1 :]]
        row = {"recording": name, "fitted": own.errors(fitted)}
        row["planned"] = own.errors(REUSE_COEFFICIENTS)
        row["held_out"] = own.errors(together(others).fit()) if others else None
        several = recordings[at].sets.shape[2] > 1
        row["extended"] = extended(recordings[at], options.experts) if several else None
        rows.append(row)
    print(", ".join(f"{value:.4f}" for value in fitted) + "\n")
    cells = [["recording", "fitted", "as plans have it", "fitted to the others", "extended"]]
    for row in rows:
        errors = (row[way] for way in ("fitted", "planned", "held_out", "extended"))
        cells.append([str(row["recording"]), *(_words(error) for error in errors)])
    print(markdown(cells))
    header = run_header(None, {"recordings": names})
    coefficients = fitted.tolist()
    print(
        json.dumps({"header": header, "complete": True, "coefficients": coefficients, "rows": rows})
    )
    return 0


def _words(error: object) -> str:
    if not isinstance(error, tuple):
        return ""
    mean, spread = error
    return f"{math.expm1(mean):+.1%} (\u00b1 {math.expm1(spread):.0%})"


if __name__ == "__main__":
    sys.exit(ended(NAME, main))
