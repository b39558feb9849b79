"""Reads resident weights again for every token, like a model that keeps nothing in DRAM.

Measures what keeping them saves: the first row of the paper's Table 2. The bytes are read to where
they were before, so the computation uses what was just read.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

import numpy as np

from flashllm import core
from flashllm.flash.file_loading import ReadErrors, open_file_reader
from flashllm.flash.file_names import RESIDENT_FILE
from flashllm.flash.safetensors_file import read_tensor_index
from flashllm.flash.store import Store

_LAYER = re.compile(r"layers\.([0-9]+)\.")


class ResidentStream:
    """Reads the resident file into its image in memory, a layer at a time. Close it."""

    def __init__(self, store: Store, image: core.Buffer, direct: bool) -> None:
        self._path = store.directory / RESIDENT_FILE
        self._image = image
        self._reader = open_file_reader(self._path, direct)
        n_layers = store.spec.n_layers
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        index = read_tensor_index(self._path)

        def layer_of(name: str) -> int:
            match = _LAYER.match(name)
            return int(match[1]) if match else n_layers

        for layer, names in groupby(index, key=layer_of):
            records = [index[name] for name in names]
            last = records[-1]
            self._ranges.setdefault(layer, []).append(
                self._rounded(records[0].offset, last.offset + last.nbytes)
            )

    @property
    def bytes_a_token(self) -> int:
        """Bytes read for all layers once, rounding included."""
        return sum(end - start for ranges in self._ranges.values() for start, end in ranges)

    def read(self, layer: int) -> None:
        """Reads a layer's weights; `n_layers` as the layer reads those of no layer."""
        where = f"{self._path}, layer {layer}"
        with ReadErrors(where):
            for start, end in self._ranges.get(layer, []):
                place = np.array([start], dtype=np.int64)
                self._reader.read(place, end - start, self._image, place)

    def stats(self) -> dict[str, int]:
        """Bytes, reads and busy time since the stream was opened."""
        stats: dict[str, Any] = self._reader.stats()
        return {name: int(stats[name]) for name in ("bytes_read", "reads", "busy_ns")}

    def close(self) -> None:
        """End the threads."""
        self._reader.close()

    def _rounded(self, start: int, end: int) -> tuple[int, int]:
        """The range rounded out for direct reads; neighbours are overwritten by themselves."""
        unit = self._reader.alignment
        return start - start % unit, min(-(-end // unit) * unit, self._reader.file_bytes)
