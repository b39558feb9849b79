"""Selectors: which bundles of a layer this token needs.

Low-rank predictors follow LLM in a flash, section 3.1: from the output of the current layer's
attention, as the feed-forward layer sees it, they predict which neurons will be above zero. They
make errors, so their answers are lossy. A resident gate makes none: it computes exactly which
neurons are active.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.arrays import Ids
from flashllm.dtypes import PREDICTOR_MATRIX_DTYPES
from flashllm.errors import TensorMismatch
from flashllm.flash.raw_tensor import RawTensor, all_finite
from flashllm.large_arrays import LARGE_ARRAYS
from flashllm.model.layer_inputs import Reads
from flashllm.spec import ModelSpec

Vector = NDArray[np.float32]


class ActiveSet(NamedTuple):
    """The bundles that a token needs in a layer, with a weight for the output of each."""

    ids: Ids  # ascending
    weights: Vector | None = None  # [n]; None: each counts once, as a neuron does

    def weights_of(self, some: Ids) -> Vector | None:
        """The weights of `some` of the ids, ascending; None where there are none."""
        if self.weights is None or len(some) == len(self.ids):
            return self.weights
        return self.weights[np.searchsorted(self.ids, some)]


class ActiveMask(Protocol):
    """Which bundles of a layer each of several tokens needs."""

    def among(self, first: int, count: int) -> NDArray[np.bool_]:
        """Which of `count` bundles from `first` on each token needs: [tokens, count]."""
        ...


class Selector(Protocol):
    """What produces the active set."""

    @property
    def reads(self) -> Reads:
        """Which of a layer's inputs it reads."""
        ...

    def select(self, layer: int, x: Vector, gate: Vector | None) -> ActiveSet:
        """The active set for what it reads, `x` [d_model].

        `gate` [d_ffn] holds the resident gate's outputs for the token, if there is one.
        """
        ...

    def select_each(self, layer: int, x: Vector, gate: Vector | None) -> ActiveMask:
        """The same for each of several tokens: `x` [tokens, d_model], `gate` [tokens, d_ffn]."""
        ...


class SelectAll:
    """Every bundle: exact, and as slow as reading the whole layer."""

    reads: Reads = "ffn"

    def __init__(self, n_bundles: int) -> None:
        self._all = ActiveSet(np.arange(n_bundles, dtype=np.int32))

    def select(self, layer: int, x: Vector, gate: Vector | None) -> ActiveSet:  # noqa: ARG002
        """All ids."""
        return self._all

    def select_each(self, layer: int, x: Vector, gate: Vector | None) -> ActiveMask:  # noqa: ARG002
        """All ids for each."""
        return Open(np.broadcast_to(np.float32(1), (len(x), len(self._all.ids))))


@dataclass(frozen=True, slots=True)
class Open:
    """Active sets as what is not zero in the outputs of gates [tokens, n]."""

    outputs: Vector

    def among(self, first: int, count: int) -> NDArray[np.bool_]:
        """As `ActiveMask` has it."""
        found: NDArray[np.bool_] = self.outputs[:, first : first + count] != 0
        return found


class SelectGate:
    """The neurons that a resident gate lets through: exact, since all others add zero."""

    reads: Reads = "ffn"

    def select(self, layer: int, x: Vector, gate: Vector | None) -> ActiveSet:  # noqa: ARG002
        """Ids where the gate is open."""
        assert gate is not None, "chosen only where the gate is resident"
        return ActiveSet(np.flatnonzero(gate).astype(np.int32))

    def select_each(self, layer: int, x: Vector, gate: Vector | None) -> ActiveMask:  # noqa: ARG002
        """Those that each token's gate lets through."""
        assert gate is not None, "chosen only where the gate is resident"
        return Open(gate)


@dataclass(frozen=True, slots=True)
class LowRank:
    """One layer's predictor: active where `up @ f(down @ x)` exceeds `cut`, f relu or nothing."""

    down: RawTensor  # [rank, d_model]
    up: RawTensor  # [d_ffn, rank]
    cut: Vector  # [d_ffn], threshold minus bias
    hidden_relu: bool = False
    before_norm: bool = False

    @classmethod
    def of(cls, tensors: Mapping[str, RawTensor], layer: int, spec: ModelSpec) -> LowRank:
        """The predictor of a layer; `TensorMismatch` when its tensors do not fit the model."""

        def tensor(part: str, *dtypes: str) -> RawTensor:
            name = f"layers.{layer}.{part}"
            if name not in tensors or tensors[name].dtype not in dtypes:
                raise TensorMismatch(f"predictors: {name} is missing or not in {dtypes}")
            return tensors[name]

        down, up = tensor("down", *PREDICTOR_MATRIX_DTYPES), tensor("up", *PREDICTOR_MATRIX_DTYPES)
        bias, threshold = tensor("bias", "f32"), tensor("threshold", "f32")
        rank = max(down.shape[:1], default=0)
        found = (down.shape, up.shape, bias.shape, threshold.shape)
        expected = ((rank, spec.d_model), (spec.d_ffn, rank), (spec.d_ffn,), (1,))
        if found != expected or not rank:
            raise TensorMismatch(
                f"predictors: layer {layer} has shapes {found}; expected {expected}, of a rank"
                " above 0"
            )
        parts = (down, up, bias, threshold)
        if not all(all_finite(part.raw, part.dtype, part.shape[-1]) for part in parts):
            raise TensorMismatch(
                f"predictors: layer {layer} holds NaN or infinity; convert the model again"
            )

        def switch(part: str) -> bool:
            if f"layers.{layer}.{part}" not in tensors:
                return False
            values = tensor(part, "f32").floats().tolist()
            if values not in ([0.0], [1.0]):
                raise TensorMismatch(f"predictors: layers.{layer}.{part} is {values}, not 0 or 1")
            return bool(values[0])

        cut = threshold.floats() - bias.floats()
        return cls(down, up, cut, switch("hidden_relu"), switch("before_norm"))


class SelectPredicted:
    """The neurons that the low-rank predictors predict to be active."""

    def __init__(
        self, tensors: Mapping[str, RawTensor], spec: ModelSpec, kernels: core.Kernels
    ) -> None:
        self._layers = [LowRank.of(tensors, layer, spec) for layer in range(spec.n_layers)]
        before_norm = self._layers[0].before_norm
        self.reads: Reads = "stream" if before_norm else "ffn"
        if any(layer.before_norm != before_norm for layer in self._layers):
            raise TensorMismatch("predictors: some read before the norm, others behind it")
        self._kernels = kernels
        self._scores = np.empty(spec.d_ffn, dtype=np.float32)
        self._ids: Ids = np.empty(spec.d_ffn, dtype=np.int32)
        self._keys: NDArray[np.int64] = np.empty(spec.d_ffn, dtype=np.int64)

    def select(self, layer: int, x: Vector, gate: Vector | None) -> ActiveSet:  # noqa: ARG002
        """Ids predicted to be active."""
        self._score(layer, x)
        count = core.ids_above(self._scores, self._layers[layer].cut, self._ids)
        return ActiveSet(self._ids[:count].copy())

    def select_each(self, layer: int, x: Vector, gate: Vector | None) -> ActiveMask:  # noqa: ARG002
        """Those predicted for each token; scores are computed where they are asked for."""
        predictor = self._layers[layer]
        inner = np.empty((len(x), predictor.down.shape[0]), dtype=np.float32)
        self._kernels.matmul(predictor.down.raw, predictor.down.dtype, x, inner)
        if predictor.hidden_relu:
            np.maximum(inner, 0.0, out=inner)
        return Predicted(predictor, inner, self._kernels)

    def ranked(self, layer: int, x: Vector) -> Ids:
        """The same ids, sorted by how far they exceed their threshold, largest first."""
        self._score(layer, x)
        keys = self._keys[: core.keys_above(self._scores, self._layers[layer].cut, self._keys)]
        keys.sort()  # a third of a stable sort of positions
        return keys.astype(np.int32)  # the lower halves

    def _score(self, layer: int, x: Vector) -> None:
        predictor = self._layers[layer]
        inner = np.empty(predictor.down.shape[0], dtype=np.float32)
        self._kernels.matvec(predictor.down.raw, predictor.down.dtype, x, inner)
        if predictor.hidden_relu:
            np.maximum(inner, 0.0, out=inner)
        self._kernels.matvec(predictor.up.raw, predictor.up.dtype, inner, self._scores)


@dataclass(frozen=True, slots=True)
class Predicted:
    """Active sets that one layer's predictor predicts, from its inner vectors [tokens, rank]."""

    predictor: LowRank
    inner: Vector
    kernels: core.Kernels

    def among(self, first: int, count: int) -> NDArray[np.bool_]:
        """As `ActiveMask` has it."""
        up, last = self.predictor.up, first + count
        row = len(up.raw) // up.shape[0]
        scores = LARGE_ARRAYS.empty(len(self.inner), count)
        self.kernels.matmul(up.raw[first * row : last * row], up.dtype, self.inner, scores)
        found: NDArray[np.bool_] = scores > self.predictor.cut[first:last]
        return found
