"""Whether layers of experts should have unequal slots: recorded routing, replayed.

    python -m benchmarks.expert_slots RECORDED.csv.gz [--shares 0.06,0.12,0.24,0.4] [--policies]

The default policy decodes the second half of a recording with the same number of slots in all
layers, and with slots allocated (`planning.slot_allocation`) by what the first half says, as they
could be for a next run: by how experts returned, or by how often each was used. Allocated by the
frequencies of the second half itself is what cannot be reached. The misses are those of the second
half; the first one fills the slots.

With `--policies` the slots are alike, and policies are compared: least recently used over all
layers together, as others have it, the same layer by layer, and the default policy.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.own_command import ended
from benchmarks.results import markdown
from benchmarks.synthetic_experts.routing import Recording, Sets, read_recording
from flashllm.bench.cache.replay import misses
from flashllm.bench.header import run_header
from flashllm.options import DEFAULT_POLICY
from flashllm.planning.activation_stats import ASSUMED_WINDOWS, Activity
from flashllm.planning.slot_allocation import DEFAULT_WINDOW, allocate, miss_curve
from flashllm.weight_cache.policies import make_policy

NAME = "expert_slots"
SHARES = "0.06,0.12,0.24,0.4"
ALIKE, RETURNS, FREQUENCIES, KNOWN = "alike", "by returns", "by frequencies", "frequencies known"
TOGETHER = "lru, all layers together"
POLICIES = ("lru", DEFAULT_POLICY)
WAYS = (ALIKE, RETURNS, FREQUENCIES, KNOWN)


def activity_of(sets: Sets, n_experts: int, part: int = 4) -> Activity:
    """The distinct experts that some tokens in a row use, by window and layer.

    Windows are as long as a `part` (a quarter) of the tokens, so that several are counted.
    """
    n_layers, tokens, per_token = sets.shape
    windows = tuple(window for window in ASSUMED_WINDOWS if window <= max(tokens // part, 1))
    used = np.zeros((n_layers, tokens, n_experts), np.bool_)
    np.put_along_axis(used, sets.astype(np.int64), True, axis=2)
    means, most = [], []
    for window in windows:
        counts = np.stack(
            [
                used[:, first : first + window].any(axis=1).sum(axis=1)
                for first in range(tokens - window + 1)
            ]
        )
        means.append(tuple(counts.mean(axis=0).tolist()))
        most.append(tuple(counts.max(axis=0).tolist()))
    return Activity(windows, tuple(means), tuple(most), (float(per_token),) * n_layers)


def frequency_curves(sets: Sets, least: int, n_experts: int) -> list[list[tuple[float, float]]]:
    """Misses of each layer were its most frequent experts kept, by their number."""
    curves = []
    for layer in sets:
        rates = -np.sort(-np.bincount(layer.reshape(-1), minlength=n_experts) / len(layer))
        left = layer.shape[1] - np.cumsum(rates)
        curves.append([(float(n), float(left[n - 1])) for n in range(least, n_experts + 1)])
    return curves


def return_curves(sets: Sets, least: int, n_experts: int) -> list[list[tuple[float, float]]]:
    """The same as a plan has them for neurons."""
    activity = activity_of(sets, n_experts)
    return [miss_curve(activity, layer, least, n_experts) for layer in range(len(sets))]


def measure(recording: Recording, shares: Sequence[float]) -> list[dict[str, Any]]:
    """For each share of all experts, hits in the second half by each way of allocating."""
    sets, n_experts = recording.sets, recording.n_experts
    n_layers, tokens, per_token = sets.shape
    half = tokens // 2
    first, second = sets[:, :half], sets[:, half:]
    curves = {
        RETURNS: return_curves(first, per_token, n_experts),
        FREQUENCIES: frequency_curves(first, per_token, n_experts),
        KNOWN: frequency_curves(second, per_token, n_experts),
    }
    found = []
    for share in shares:
        each = max(int(share * n_experts), per_token)
        ways = {ALIKE: [each] * n_layers} | {
            name: allocate(curve, each * n_layers, per_token) for name, curve in curves.items()
        }
        hits = {
            name: 1 - _misses(recording, slots, half) / ((tokens - half) * n_layers * per_token)
            for name, slots in ways.items()
        }
        spread = min(ways[FREQUENCIES]), max(ways[FREQUENCIES])
        found.append({"share": each / n_experts, "slots": each, "hits": hits, "spread": spread})
    return found


def compare_policies(recording: Recording, shares: Sequence[float]) -> list[dict[str, Any]]:
    """For each share of all experts, hits in the second half by each policy."""
    n_layers, tokens, per_token = recording.sets.shape
    half = tokens // 2
    used = (tokens - half) * n_layers * per_token
    found = []
    for share in shares:
        each = max(int(share * recording.n_experts), per_token)
        missed = {TOGETHER: _misses_together(recording.sets, each * n_layers, half)} | {
            name: _misses(recording, [each] * n_layers, half, name) for name in POLICIES
        }
        hits = {name: 1 - count / used for name, count in missed.items()}
        found.append({"share": each / recording.n_experts, "slots": each, "hits": hits})
    return found


def _misses_together(sets: Sets, slots: int, half: int) -> int:
    """Those of one list of the experts of all layers, of which the least recently used goes."""
    held: OrderedDict[tuple[int, int], None] = OrderedDict()
    missed = 0
    for token in range(sets.shape[1]):
        for layer, experts in enumerate(sets[:, token].tolist()):
            for expert in experts:
                missed += token >= half and (layer, expert) not in held
                held[layer, expert] = None
                held.move_to_end((layer, expert))
                if len(held) > slots:
                    held.popitem(last=False)
    return missed


def _misses(
    recording: Recording, slots_per_layer: Sequence[int], half: int, name: str = DEFAULT_POLICY
) -> int:
    total = 0
    for layer, slots in zip(recording.sets, slots_per_layer, strict=True):
        policy = make_policy(name, recording.n_experts, DEFAULT_WINDOW)
        total += sum(misses(list(layer), recording.n_experts, slots, policy)[half:])
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table, and JSON as its last line."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}", description=__doc__)
    parser.add_argument("recording", type=Path, metavar="CSV", help="recorded routing of experts")
    shares = f"of all experts that have slots ({SHARES})"
    parser.add_argument("--shares", default=SHARES, help=shares)
    parser.add_argument("--policies", action="store_true", help="compare policies instead")
    options = parser.parse_args(arguments)
    recording = read_recording(options.recording)
    compare = compare_policies if options.policies else measure
    rows = compare(recording, [float(share) for share in options.shares.split(",")])
    ways = (TOGETHER, *POLICIES) if options.policies else WAYS
    cells = [["slots a layer", "share", *ways, *([] if options.policies else ["least and most"])]]
    for row in rows:
        hits = [f"{row['hits'][name]:.1%}" for name in ways]
        spread = (
            [f"{least} to {most}" for least, most in [row["spread"]]] if "spread" in row else []
        )
        cells.append([str(row["slots"]), f"{row['share']:.1%}", *hits, *spread])
    print(markdown(cells))
    header = run_header(None, {"recording": recording.name, "policy": DEFAULT_POLICY})
    print(json.dumps({"header": header, "complete": True, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(ended(NAME, main))
