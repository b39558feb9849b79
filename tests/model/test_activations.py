"""Activation functions, held against torch in 64 bits."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from flashllm.arrays import unwarned
from flashllm.large_arrays import Floats
from flashllm.model.activations import activate, combine, margin
from flashllm.spec import ModelSpec
from tests.support.specs import SPEC

THRESHOLD = 0.25
REFERENCES = {
    "relu": torch.relu,
    "drelu": torch.relu,
    "relu2": lambda x: torch.relu(x) ** 2,
    "fatrelu": lambda x: functional.threshold(x, THRESHOLD, 0.0),
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}
SPECIAL = np.array([0.0, -0.0, 1e-30, -1e-30, 7.0, -7.0, 1e30, -1e30, np.nan], np.float32)


def spec_with(activation: str) -> ModelSpec:
    threshold = THRESHOLD if activation == "fatrelu" else 0.0
    changes: dict[str, Any] = {"activation": activation, "activation_threshold": threshold}
    if activation == "drelu":
        changes |= {"gate": "bundled", "rows_per_neuron": 3}
    return dataclasses.replace(SPEC, **changes)


def values() -> Floats:
    """Everywhere where a function bends."""
    steps = np.arange(-8, 8, 1 / 64, dtype=np.float32)
    drawn = 3 * np.random.default_rng(0).standard_normal(20_000, np.float32)
    return np.concatenate((steps, np.nextafter(steps, np.float32(9)), drawn))


@pytest.mark.parametrize("activation", REFERENCES)
def test_values_are_those_of_torch(activation: str) -> None:
    x = values()
    found = activate(spec_with(activation), x.reshape(2, -1)).reshape(-1)
    expected = REFERENCES[activation](torch.from_numpy(x).double()).numpy()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=3e-7, atol=4e-7)


@pytest.mark.parametrize("activation", REFERENCES)
def test_what_is_no_usual_number(activation: str) -> None:
    found = unwarned(activate)(spec_with(activation), SPECIAL[None])[0]
    expected = REFERENCES[activation](torch.from_numpy(SPECIAL).double()).float().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-14)


@pytest.mark.parametrize("activation", REFERENCES)
def test_a_value_has_the_same_bits_alone_and_among_others(activation: str) -> None:
    spec, x = spec_with(activation), values()[-300:]
    together = activate(spec, x[None])[0]
    for count in (1, 7, 64):
        parts = [activate(spec, x[None, at : at + count])[0] for at in range(0, len(x), count)]
        assert np.concatenate(parts).tobytes() == together.tobytes()


def test_inputs_stay_as_they_are() -> None:
    for activation in REFERENCES:
        x = values()
        before = x.copy()
        activate(spec_with(activation), x)
        assert np.array_equal(x, before)


def test_a_gate_lets_through_what_it_multiplies() -> None:
    gate, up = np.array([[2.0, 0.0, 3.0]], np.float32), np.array([[5.0, 7.0, -1.0]], np.float32)
    assert combine(spec_with("relu"), gate, up).tolist() == [[10, 0, -3]]
    assert combine(spec_with("drelu"), gate, up).tolist() == [[10, 0, 0]]


def test_margins_are_above_zero_where_outputs_are_not_zero() -> None:
    gate, up = np.array([[0.2, 0.3, 3.0]], np.float32), np.array([[5.0, 7.0, -1.0]], np.float32)
    assert (margin(spec_with("relu"), gate, None) > 0).tolist() == [[True, True, True]]
    assert (margin(spec_with("fatrelu"), gate, None) > 0).tolist() == [[False, True, True]]
    assert (margin(spec_with("drelu"), gate, up) > 0).tolist() == [[True, True, False]]
