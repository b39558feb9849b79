"""The order of neurons on flash, where it is not the checkpoint's: `order.safetensors`.

    neurons   i32 [n_layers, d_ffn]   which neuron of the checkpoint each bundle is
    rates     f32 [n_layers, d_ffn]   by which share of the calibration text's tokens it was used

All ids at run time are positions in the bundle file; this maps them to the checkpoint's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashllm.errors import LayoutError
from flashllm.flash.safetensors_file import pack_tensor_header, read_tensor_index
from flashllm.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class NeuronOrder:
    """A permutation of the neurons of each layer, and how often each is used."""

    neurons: NDArray[np.int32]  # [n_layers, d_ffn]
    rates: NDArray[np.float32]  # [n_layers, d_ffn], of the bundles in their order

    def to_bytes(self) -> bytes:
        """The content of `order.safetensors`."""
        shape = self.neurons.shape
        header = pack_tensor_header([("neurons", "i32", shape), ("rates", "f32", shape)])
        return header + self.neurons.astype("<i4").tobytes() + self.rates.astype("<f4").tobytes()


def read_order(path: Path, spec: ModelSpec) -> NeuronOrder:
    """What `order.safetensors` holds; `LayoutError` unless it is an order of the spec's neurons."""
    index = read_tensor_index(path)
    shape = (spec.n_layers, spec.d_ffn)
    found = {name: (record.dtype, record.shape) for name, record in index.items()}
    if found != {"neurons": ("i32", shape), "rates": ("f32", shape)}:
        raise LayoutError(f"{path}: holds {found}, no order of {shape} neurons; convert again")
    raw = path.read_bytes()
    place = index["neurons"].offset
    neurons = np.frombuffer(raw, "<i4", spec.n_layers * spec.d_ffn, place).reshape(shape)
    if (np.sort(neurons, axis=1) != np.arange(spec.d_ffn)).any():
        raise LayoutError(f"{path}: a neuron is missing or occurs twice; convert again")
    rates = np.frombuffer(raw, "<f4", spec.n_layers * spec.d_ffn, index["rates"].offset)
    return NeuronOrder(neurons.astype(np.int32), rates.astype(np.float32).reshape(shape))
