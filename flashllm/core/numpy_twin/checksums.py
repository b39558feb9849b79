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


def crc32c(data: NDArray[np.uint8], value: int = 0) -> int:
    """CRC-32C of the bytes, continuing from `value`."""
    require_array("data", data, np.uint8)
    table = _CRC_TABLE.tolist()
    state = value ^ 0xFFFFFFFF
    for byte in data.tobytes():
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state ^ 0xFFFFFFFF


def bundle_checksums(
    data: NDArray[np.uint8],
    stride: int,
    bundle_bytes: int,
    file_id: bytes,
    layer: int,
    first_bundle: int,
) -> NDArray[np.uint32]:
    """CRC-32C of each bundle, seeded by file, layer and bundle number."""
    require_array("data", data, np.uint8)
    if not 1 <= bundle_bytes <= stride or len(data) % stride or len(file_id) != 16:
        raise ValueError(
            f"{len(data)} bytes, stride {stride}, bundle {bundle_bytes}, file id {len(file_id)}: "
            "expected whole strides, a bundle within its stride, 16 bytes of file id"
        )
    count = len(data) // stride
    if not 0 <= layer < 1 << 32 or not 0 <= first_bundle <= (1 << 32) - max(count, 1):
        raise ValueError(f"layer {layer} and bundle {first_bundle} must fit in 32 bits")
    numbers = np.arange(first_bundle, first_bundle + count, dtype=np.uint32)
    rows = data.reshape(count, stride)[:, :bundle_bytes]
    return checksums_of(rows, file_id, np.full(count, layer, np.uint32), numbers)


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
