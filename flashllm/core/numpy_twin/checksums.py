"""The twin of the native core's checksums: CRC-32C, of bytes and of bundles at their places."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flashllm.core.numpy_twin.arguments import require_array


def _crc_table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table


_CRC_TABLE = _crc_table()


def crc32c(data: NDArray[np.uint8] | bytes, value: int = 0) -> int:
    """CRC-32C of the bytes, continuing from `value`."""
    if isinstance(data, bytes):
        data = np.frombuffer(data, np.uint8)
    require_array("data", data, np.uint8)
    table = _CRC_TABLE.tolist()
    state = value ^ 0xFFFFFFFF
    for byte in data.tobytes():
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state ^ 0xFFFFFFFF


def bundle_checksums(
    data: NDArray[np.uint8],
    begins: NDArray[np.int64],
    bundle_bytes: int,
    file_id: bytes,
    layer: int,
    numbers: NDArray[np.uint32],
) -> NDArray[np.uint32]:
    """CRC-32C of the bundle at each of `begins`, seeded by file, layer and its number."""
    require_array("data", data, np.uint8)
    require_array("begins", begins, np.int64)
    require_array("numbers", numbers, np.uint32)
    if len(begins) != len(numbers) or len(file_id) != 16 or not 0 <= layer < 1 << 32:
        raise ValueError(
            f"{len(begins)} begins, {len(numbers)} numbers, file id {len(file_id)}, layer {layer}: "
            "expected as many of both, 16 bytes of file id, a layer of 32 bits"
        )
    if bundle_bytes < 1 or ((begins < 0) | (begins > len(data) - bundle_bytes)).any():
        raise ValueError(f"a bundle of {bundle_bytes} bytes is not within {len(data)} bytes")
    rows = data[begins[:, None] + np.arange(bundle_bytes)]
    return checksums_of(rows, file_id, np.full(len(begins), layer, np.uint32), numbers)


def checksums_of(
    rows: NDArray[np.uint8], file_id: bytes, layers: NDArray[np.uint32], bundles: NDArray[np.uint32]
) -> NDArray[np.uint32]:
    """CRC-32C of each of `rows` [n, bundle_bytes], seeded by file, `layers` [n] and `bundles` [n].

    Byte by byte of all rows together, which is what makes it bearable without native code.
    """
    seed = crc32c(np.frombuffer(file_id, np.uint8))
    state: NDArray[np.uint32] = np.full(len(rows), seed ^ 0xFFFFFFFF, np.uint32)
    for values in (layers, bundles):
        for column in values.astype("<u4").view(np.uint8).reshape(-1, 4).T:
            state = _CRC_TABLE[(state ^ column) & 0xFF] ^ (state >> np.uint32(8))
    for column in rows.T:
        state = _CRC_TABLE[(state ^ column) & 0xFF] ^ (state >> np.uint32(8))
    return np.bitwise_not(state)
