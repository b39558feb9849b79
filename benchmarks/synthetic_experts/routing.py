"""Which experts each token of a synthetic model goes through, drawn from recorded routing.

A recording is a CSV, gzipped or not, with a line for each expert of each token in each layer: the
columns phase (1: decoding), step, layer and expert are read. What is drawn are stretches of
neighbouring tokens, so that the skew of each layer and what stays from token to token are kept.
"""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashllm.errors import UsageError

STRETCH_TOKENS = 16
"""Tokens that are drawn together."""
NEAR, ANY = 0.3, 0.4
"""What counts for an expert to be drawn, beside how often its layer uses it: that a neighbouring
token does, and being there at all. `python -m benchmarks.expert_reuse` holds them against routing.
"""
_RECORDING_BYTES_MAX = 64 << 20

Sets = NDArray[np.int32]
"""Experts by layer and token, [layers, tokens, experts a token], ascending."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What the tokens of one answer went through."""

    name: str
    sets: Sets
    n_experts: int


def read_recording(path: Path, order: str = "expert") -> Recording:
    """The decoded tokens of a recording; `UsageError` for a file that is none.

    A token's experts ascend by the column `order`: slot is their rank by weight.
    """
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                raw = file.read(_RECORDING_BYTES_MAX)
        lines = raw.decode().splitlines()
        found = [
            tuple(int(row[name]) for name in ("layer", "step", order, "expert"))
            for row in csv.DictReader(line for line in lines if not line.startswith("#"))
            if row["phase"] == "1"
        ]
        layers, steps, _, experts = np.array(sorted(found), dtype=np.int64).T
    except OSError as problem:
        raise UsageError(f"{path}: {problem.strerror or problem}") from problem
    except (ValueError, KeyError, UnicodeDecodeError, EOFError) as problem:
        raise UsageError(f"{path}: no recorded routing ({problem})") from problem
    n_layers, n_steps = len(set(layers.tolist())), len(set(steps.tolist()))
    per_token = len(found) // (n_layers * n_steps)
    if n_layers * n_steps * per_token != len(found) or experts.min() < 0:
        raise UsageError(f"{path}: some tokens have other numbers of experts than others")
    sets = experts.astype(np.int32).reshape(n_layers, n_steps, per_token)
    return Recording(path.name, sets, int(experts.max()) + 1)


def fold(recording: Recording, n_experts: int) -> Recording:
    """The same routing for a model with fewer experts, of which each stands for several.

    In each layer experts are dealt by how often they were used: the most frequent ones go to
    different experts of the smaller model, and then again. A token that used two which became one
    has it twice, and another is drawn for it. The skew is weaker than the recorded one.
    """
    folded = np.empty_like(recording.sets)
    for layer, sets in enumerate(recording.sets):
        uses = np.bincount(sets.reshape(-1), minlength=recording.n_experts)
        dealt = np.empty(recording.n_experts, np.int32)
        dealt[np.argsort(-uses, kind="stable")] = np.arange(recording.n_experts) % n_experts
        folded[layer] = np.sort(dealt[sets], axis=1)
    return Recording(recording.name, folded, min(n_experts, recording.n_experts))


def draw(
    recording: Recording, n_layers: int, n_experts: int, per_token: int, tokens: int, seed: int
) -> Sets:
    """The experts of `tokens` tokens, [n_layers, tokens, per_token].

    Where more experts a token are asked for than were recorded, the others are drawn by how often
    the layer used them and whether a neighbouring token did. `UsageError` for a model with more
    layers, or other experts, than the recording.
    """
    recorded = recording.sets
    if n_layers > len(recorded) or per_token > n_experts or recording.n_experts > n_experts:
        raise UsageError(
            f"{recording.name} has {len(recorded)} layers and experts up to"
            f" {recording.n_experts - 1}; the model has {n_layers} layers of {n_experts} experts"
        )
    random = np.random.default_rng(seed)
    steps = _stretches(random, recorded.shape[1], tokens)
    sets = np.empty((n_layers, tokens, per_token), dtype=np.int32)
    for layer in range(n_layers):
        sets[layer] = extend(random, recorded[layer], steps, per_token, n_experts)
    return sets


def extend(
    random: np.random.Generator,
    layer: Sets,
    steps: NDArray[np.int64],
    per_token: int,
    n_experts: int,
) -> Sets:
    """The recorded experts of a layer at `steps`, and more drawn to them: [steps, per_token]."""
    weights = _weights(layer, n_experts)
    sets = np.empty((len(steps), per_token), dtype=np.int32)
    for token, step in enumerate(steps.tolist()):
        own = np.unique(layer[step][:per_token])
        odds = weights[step].copy()
        odds[own] = 0
        more = random.choice(n_experts, per_token - len(own), replace=False, p=odds / odds.sum())
        sets[token] = np.sort(np.concatenate([own, more]))
    return sets


def _stretches(random: np.random.Generator, recorded: int, tokens: int) -> NDArray[np.int64]:
    """Numbers of recorded tokens: stretches of neighbours, each token as likely as any other."""
    starts = random.integers(0, recorded, -(-tokens // STRETCH_TOKENS))
    steps: NDArray[np.int64] = (starts[:, None] + np.arange(STRETCH_TOKENS)) % recorded
    return steps.reshape(-1)[:tokens]


def _weights(layer: Sets, n_experts: int) -> NDArray[np.float64]:
    """How likely each token of a layer goes through another expert besides, [tokens, n_experts]."""
    used = np.zeros((len(layer), n_experts))
    np.put_along_axis(used, layer.astype(np.int64), 1.0, axis=1)
    near = np.zeros_like(used)
    near[1:] += used[:-1]
    near[:-1] += used[1:]
    # Weighed so, what is drawn to the heaviest recorded experts returns as the others did.
    weights: NDArray[np.float64] = used.mean(axis=0) + NEAR * near + ANY / n_experts
    return weights
