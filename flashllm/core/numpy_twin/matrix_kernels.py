"""The twin of the native core's products of whole matrices, in numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flashllm.arrays import unwarned
from flashllm.core.numpy_twin import rows as numpy_rows
from flashllm.core.numpy_twin.arguments import require_array
from flashllm.core.numpy_twin.reader import check_threads
from flashllm.core.numpy_twin.routing import expert_weights
from flashllm.core.numpy_twin.rows import row_bytes
from flashllm.core.numpy_twin.token_rows import add_shares, gate_rows

DECODED_ROWS = 1024
"""Rows decoded at a time: bounds the memory of a product of many rows."""


class MatrixKernels:
    """Products of matrices, on one thread."""

    def __init__(self, threads: int = 1, isa: str | None = None, fast: bool = False) -> None:
        check_threads(threads)
        if isa not in (None, "numpy"):
            raise ValueError(f"isa is {isa!r}; available: numpy")
        self.threads = threads
        self.isa = "numpy"
        self.fast = fast
        self._closed = False

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the kernels are closed")

    def close(self) -> None:
        """Later calls raise ValueError."""
        self._closed = True

    @unwarned
    def matvec(
        self,
        rows: NDArray[np.uint8],
        dtype: str,
        x: NDArray[np.float32],
        out: NDArray[np.float32],
    ) -> None:
        """Product out [n] = rows [n, d] @ x [d]."""
        self._check_open()
        require_array("rows", rows, np.uint8)
        require_array("x", x, np.float32)
        require_array("out", out, np.float32, writable=True)
        nbytes = row_bytes(dtype, len(x))
        if len(rows) != len(out) * nbytes:
            raise ValueError(
                f"rows has {len(rows)} bytes; {len(out)} rows of {nbytes} were expected"
            )
        encoded = rows.reshape(len(out), nbytes)
        for first in range(0, len(out), DECODED_ROWS):
            part = encoded[first : first + DECODED_ROWS]
            out[first : first + DECODED_ROWS] = numpy_rows.dots(part, dtype, x, self.fast)

    def matvec_each(
        self,
        data: NDArray[np.uint8],
        begins: NDArray[np.int64],
        dtype: str,
        x: NDArray[np.float32],
        out: NDArray[np.float32],
    ) -> None:
        """`matvec` of matrices that begin at bytes of `data`, each with its vector or the one."""
        self._check_open()
        require_array("data", data, np.uint8)
        require_array("begins", begins, np.int64)
        require_array("x", x, np.float32, dimensions=2)
        require_array("out", out, np.float32, writable=True, dimensions=2)
        for name, count in (("out", len(out)), ("x", len(begins) if len(x) == 1 else len(x))):
            if count != len(begins):
                raise ValueError(f"{name} has {count} values for {len(begins)} ids")
        nbytes = row_bytes(dtype, x.shape[1]) * out.shape[1]
        for begin in begins.tolist():
            if begin < 0:
                raise IndexError(f"begin is negative: {begin}")
            if begin + nbytes > len(data):
                raise IndexError(f"{nbytes} bytes from {begin} on are beyond {len(data)}")
        for number, begin in enumerate(begins.tolist()):
            vector = x[0 if len(x) == 1 else number]
            self.matvec(data[begin : begin + nbytes], dtype, vector, out[number])

    def matmul(
        self,
        rows: NDArray[np.uint8],
        dtype: str,
        x: NDArray[np.float32],
        out: NDArray[np.float32],
        tiled: bool = False,
    ) -> None:
        """Out [vectors, n] = x [vectors, d] @ rows [n, d].T, `matvec` of each vector."""
        self._check_open()
        if tiled:
            raise no_tiles(dtype)
        require_array("rows", rows, np.uint8)
        check_vectors("x", x, "out", out)
        nbytes = row_bytes(dtype, x.shape[1])
        if len(rows) != out.shape[1] * nbytes:
            raise ValueError(
                f"rows has {len(rows)} bytes; {out.shape[1]} rows of {nbytes} were expected"
            )
        for vector, products in zip(x, out, strict=True):
            self.matvec(rows, dtype, vector, products)

    def matmul_several(
        self,
        rows: Sequence[NDArray[np.uint8]],
        dtype: str,
        biases: Sequence[NDArray[np.float32] | None],
        x: NDArray[np.float32],
        outs: Sequence[NDArray[np.float32]],
        tiled: bool = False,
    ) -> None:
        """`matmul` of matrices of one encoding with the same vectors, each plus its bias [n]."""
        self._check_open()
        if not len(rows) == len(biases) == len(outs):
            raise ValueError(f"{len(biases)} biases and {len(outs)} outs for {len(rows)} matrices")
        for bias, out in zip(biases, outs, strict=True):
            if bias is None:
                continue
            require_array("bias", bias, np.float32)
            if len(bias) not in (0, out.shape[1]):
                raise ValueError(f"bias has {len(bias)} values for {out.shape[1]} ids")
        for matrix, bias, out in zip(rows, biases, outs, strict=True):
            self.matmul(matrix, dtype, x, out, tiled)
            if bias is not None and len(bias):
                out += bias

    def apply_experts(
        self,
        data: NDArray[np.uint8],
        begins: NDArray[np.int64],
        dtype: str,
        has_biases: bool,
        slope: float,
        limit: float,
        up_offset: float,
        x: NDArray[np.float32],
        room: NDArray[np.float32],
        out: NDArray[np.float32],
        weights: NDArray[np.float32] | None = None,
        total: NDArray[np.float32] | None = None,
    ) -> None:
        """Outputs of gated experts: gate and up of `room`, `gate_rows`, then down."""
        self._check_open()
        require_array("room", room, np.float32, writable=True, dimensions=2)
        require_array("out", out, np.float32, writable=True, dimensions=2)
        require_array("x", x, np.float32, dimensions=2)
        neurons, columns = room.shape[1] // 2, x.shape[1]
        if weights is not None and len(weights) != len(begins):
            raise ValueError(f"weights has {len(weights)} values for {len(begins)} ids")
        if weights is not None and (total is None or len(total) != columns):
            raise ValueError(f"total has no {columns} values")
        if out.shape[1] != columns or room.shape[1] % 2:
            raise ValueError(
                f"out has {out.shape[1]} columns and room {room.shape[1]}; as many as x,"
                f" {columns}, and twice the neurons were expected"
            )
        gate_up = row_bytes(dtype, columns) * 2 * neurons
        end = gate_up + row_bytes(dtype, neurons) * columns
        biases = np.zeros((len(begins), 2 * neurons + columns), np.float32)
        if has_biases:
            for begin in begins.tolist():
                if begin < 0 or begin + end + biases[0].nbytes > len(data):
                    raise IndexError(f"an expert's bytes from {begin} on are beyond {len(data)}")
            for number, begin in enumerate(begins.tolist()):
                own = data[begin + end : begin + end + biases[0].nbytes]
                biases[number] = np.frombuffer(own.tobytes(), np.float32)
        self.matvec_each(data, begins, dtype, x, room)
        if not len(begins):
            return
        room += biases[:, : 2 * neurons]
        hidden = np.empty((len(room), neurons), np.float32)
        gate_rows(room[:, :neurons], room[:, neurons:], slope, limit, up_offset, hidden)
        self.matvec_each(data, begins + gate_up, dtype, hidden, out)
        out += biases[:, 2 * neurons :]
        if weights is not None and total is not None:
            add_shares(out, weights, np.zeros(len(out), np.int32), total[None])

    def route(
        self,
        rows: NDArray[np.uint8],
        dtype: str,
        bias: NDArray[np.float32] | None,
        choice_bias: NDArray[np.float32] | None,
        per_token: int,
        sigmoid: bool,
        groups: int,
        groups_kept: int,
        renormalise: bool,
        sum_offset: float,
        weight_scale: float,
        x: NDArray[np.float32],
        ids: NDArray[np.int32],
        weights: NDArray[np.float32],
    ) -> int:
        """The experts of a token whose `expert_weights` are not 0, ascending; returns how many."""
        self._check_open()
        require_array("ids", ids, np.int32, writable=True)
        require_array("weights", weights, np.float32, writable=True)
        logits = np.empty((1, len(rows) // row_bytes(dtype, len(x))), np.float32)
        self.matmul_several([rows], dtype, [bias], x[None], [logits])
        for name, values in (("ids", ids), ("weights", weights)):
            if len(values) != per_token:
                raise ValueError(f"{name} has {len(values)} values for {per_token} ids")
        all_weights = np.empty_like(logits)
        expert_weights(
            logits, choice_bias, per_token, sigmoid, groups, groups_kept, renormalise,
            sum_offset, weight_scale, all_weights,
        )  # fmt: skip
        chosen = np.flatnonzero(all_weights[0])
        ids[: len(chosen)], weights[: len(chosen)] = chosen, all_weights[0, chosen]
        return len(chosen)

    def tile_rows(self, dtype: str) -> int:
        """0: rows stay as they are."""
        self._check_open()
        row_bytes(dtype, 1)
        return 0

    def tile_matrix(self, rows: NDArray[np.uint8], dtype: str, columns: int) -> bool:
        """False: rows stay as they are."""
        self._check_open()
        require_array("rows", rows, np.uint8)
        nbytes = row_bytes(dtype, columns)
        if len(rows) % nbytes:
            raise ValueError(
                f"rows has {len(rows)} bytes, which is no whole number of rows of {nbytes}"
            )
        return False


def no_tiles(dtype: str) -> ValueError:
    """What is said of rows in tiles."""
    return ValueError(f"{dtype}: there are no tiles of numpy")


def check_vectors(
    name: str, values: NDArray[np.float32], result: str, out: NDArray[np.float32]
) -> None:
    """A row of `values` and one of `out` for each vector."""
    require_array(name, values, np.float32, dimensions=2)
    require_array(result, out, np.float32, writable=True, dimensions=2)
    if len(values) != len(out):
        raise ValueError(f"{name} has {len(values)} rows and {result} {len(out)}: one a vector")
