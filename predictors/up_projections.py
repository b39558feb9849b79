"""The true up-projections, read from a converted model one layer at a time."""

from __future__ import annotations

from pathlib import Path

import torch

from flashllm import core
from flashllm.errors import UnsupportedModel
from flashllm.flash.raw_tensor import RawTensor
from flashllm.flash.store import Store

BLOCK_BYTES = 32 << 20
READ_THREADS = 4


class UpProjections:
    """Reads the up rows out of a model's bundles; close it after use."""

    def __init__(self, directory: Path) -> None:
        self._store = Store(directory)
        spec = self._store.spec
        if spec.rows_per_neuron != 2 or spec.neurons_per_bundle != 1:
            raise UnsupportedModel(
                f"{directory}: predictors are for neurons of an up and a down row; this model's "
                f"have {spec.rows_per_neuron} rows"
            )
        self._store.open_reader(direct=True, threads=READ_THREADS)

    def close(self) -> None:
        """Stop reading."""
        self._store.close()

    def layer(self, layer: int) -> torch.Tensor:
        """The up-projection [d_ffn, d_model] of a layer in float32."""
        store, stride = self._store, self._store.header.stride
        spec = store.spec
        block = max(1, min(spec.bundles_per_layer, BLOCK_BYTES // stride))
        buffer = core.Buffer(block * stride)
        out = torch.empty(spec.d_ffn, spec.d_model)
        for first in range(0, spec.bundles_per_layer, block):
            count = min(block, spec.bundles_per_layer - first)
            store.wait(store.submit_span(layer, first, count, buffer), layer)
            bundles = buffer.array()[: count * stride].reshape(count, stride)
            rows = bundles[:, : spec.row_bytes].copy()
            values = RawTensor(rows.reshape(-1), spec.dtype, (count, spec.d_model)).floats()
            out[first : first + count] = torch.from_numpy(values)
        return out
