"""Which bundles are held against their checksums, and which of them are wrong: the twin's part.

As in the native core: always, or each the first time that it is read.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from flashllm.core.numpy_twin.arguments import require_array
from flashllm.core.numpy_twin.checksums import checksums_of

Numbers = NDArray[np.int64]


class ChecksumError(RuntimeError):
    """A bundle is not what was written, also when it was read again."""


class BundleChecks:
    """The checksums of a file's bundles, which of them were found right, and counts."""

    NO_COUNTS: Final = dict.fromkeys(
        ("bundles_verified", "bundles_mismatched", "bundles_damaged"), 0
    )

    def __init__(
        self,
        expected: NDArray[np.uint32],
        file_id: bytes,
        data_offset: int,
        stride: int,
        bundle_bytes: int,
        bundles_per_layer: int,
        always: bool,
    ) -> None:
        """`expected` has the checksum of each bundle, layer after layer; see `verify_bundles`."""
        require_array("checksums", expected, np.uint32)
        if len(file_id) != 16:
            raise ValueError("file_id must have 16 bytes")
        whole_layers = bundles_per_layer >= 1 and len(expected) % bundles_per_layer == 0
        if not 1 <= bundle_bytes <= stride or not whole_layers:
            raise ValueError(
                f"{len(expected)} checksums of bundles of {bundle_bytes} bytes, stride {stride}:"
                f" expected bundles within their strides, and whole layers of {bundles_per_layer}"
            )
        self._expected = expected.copy()
        self._file_id = file_id
        self._data_offset = data_offset
        self.stride = stride
        self._bundle_bytes = bundle_bytes
        self._per_layer = bundles_per_layer
        self._always = always
        self._found_right = np.zeros(len(expected), np.bool_)
        self.counts = dict(self.NO_COUNTS)

    def check_batch(self, offsets: Numbers, length: int) -> None:
        """`ValueError` unless each request is of whole bundles."""
        starts = offsets - self._data_offset
        end = len(self._expected) * self.stride
        whole = length % self.stride == 0 and not (starts % self.stride).any()
        if not whole or (starts < 0).any() or (starts + length > end).any():
            raise ValueError(
                f"reads of {length} bytes that are not whole bundles cannot be verified"
            )

    def read_by(
        self, offsets: Numbers, length: int, destinations: Numbers
    ) -> tuple[Numbers, Numbers]:
        """The bundles that a batch reads and that are to be compared, and where they are now."""
        inside = np.arange(length // self.stride, dtype=np.int64)
        first = (offsets - self._data_offset) // self.stride
        bundles = (first[:, None] + inside).reshape(-1)
        places = (destinations[:, None] + inside * self.stride).reshape(-1)
        wanted = self._always | ~self._found_right[bundles]
        return bundles[wanted], places[wanted]

    def wrong_ones(
        self, bundles: Numbers, places: Numbers, target: NDArray[np.uint8]
    ) -> NDArray[np.intp]:
        """Which of the bundles at `places` of `target` are wrong; the others count as verified."""
        if not len(bundles):
            return np.zeros(0, np.intp)
        rows = target[places[:, None] + np.arange(self._bundle_bytes)]
        layers, numbers = np.divmod(bundles, self._per_layer)
        found = checksums_of(
            rows, self._file_id, layers.astype(np.uint32), numbers.astype(np.uint32)
        )
        right = found == self._expected[bundles]
        self._found_right[bundles[right]] = True
        self.counts["bundles_verified"] += int(np.count_nonzero(right))
        return np.flatnonzero(~right)

    def offset(self, bundle: int) -> int:
        """Where a bundle begins in the file."""
        return self._data_offset + bundle * self.stride

    def place(self, bundle: int) -> str:
        """A bundle in words."""
        layer, number = divmod(bundle, self._per_layer)
        return f"layer {layer}, bundle {number}, at offset {self.offset(bundle)}"
