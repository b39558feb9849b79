"""The tensors of a GGUF whose routers follow a table of sets of experts.

A token's embedding is one large number, in a column of its own: `id % codes` says which. What
layers add is so much smaller that every router sees this column, and its rows are made of the
columns of the tokens that are to go through its expert. The head gives, for the column of code n,
the token n + 1: a greedy answer goes through the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.gguf_encoding import ENCODINGS, Encoding
from benchmarks.synthetic_experts.routing import Sets
from flashllm.spec import ModelSpec

CODE = 32.0
"""A token's one large number."""
LOGIT_ROW = 0.5
"""What the head's rows have in the column of the token before."""
ROUTER_LEAST, ROUTER_MOST = 4.0, 8.0
"""Logits of the experts that a token is to go through; of the others they are about 0."""
_QUIET = 3
"""Halvings of the scales of what is added to the stream."""
_SMALL = 1 / 64
"""The most that a random bias is."""
_BLOCK_ROWS = 4096
_ONES = np.ones(1 << 16, np.float32)

Rows = Callable[[int, int], NDArray[np.uint8]]
"""From a first row and a number of rows to their bytes."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the file, made in blocks of rows."""

    name: str
    shape: tuple[int, ...]
    """Of weights; rows are the last."""
    kind: str
    """`f32`, or a name of ENCODINGS."""
    rows: Rows

    @property
    def n_rows(self) -> int:
        """Rows of all matrices of a stack."""
        return int(np.prod(self.shape[:-1]))

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(ENCODINGS[self.kind].nbytes(self.shape[-1]))

    def blocks(self) -> Iterator[NDArray[np.uint8]]:
        """All rows, in order."""
        for first in range(0, self.n_rows, _BLOCK_ROWS):
            count = min(_BLOCK_ROWS, self.n_rows - first)
            yield self.rows(first, count).reshape(count, self.row_bytes)


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes the tensors of one model, by seeds: the same model for the same arguments."""

    spec: ModelSpec
    sets: Sets
    seed: int
    encoding: Encoding
    """Of all matrices but those of experts, where these have their own."""
    expert_encoding: Encoding | None = None
    second_norm: str = "ffn_norm"
    """What the architecture calls the norm in front of the experts."""

    @property
    def codes(self) -> int:
        """Tokens of the table."""
        return int(self.sets.shape[1])

    @property
    def columns(self) -> NDArray[np.int64]:
        """The column of each code."""
        random = np.random.default_rng((self.seed, 1))
        columns: NDArray[np.int64] = random.permutation(self.spec.d_model)[: self.codes]
        return columns

    def tensors(self) -> Iterator[Tensor]:
        """All of the file, in its order."""
        spec, experts = self.spec, self.spec.experts
        assert experts is not None
        width, heads = spec.d_model, spec.n_heads * spec.head_dim
        keys, neurons, count = spec.n_kv_heads * spec.head_dim, experts.d_ffn, experts.n_experts
        yield Tensor(
            "token_embd.weight", (spec.vocab_size, width), self.encoding.name, self._embedding
        )
        yield _ones("output_norm.weight", width)
        yield Tensor("output.weight", (spec.vocab_size, width), self.encoding.name, self._head)
        for layer in range(spec.n_layers):
            at = f"blk.{layer}"
            yield _ones(f"{at}.attn_norm.weight", width)
            for name, rows in (("q", heads), ("k", keys), ("v", keys)):
                yield from self._linear(f"{at}.attn_{name}", (rows, width), spec.attention_bias)
            if spec.qk_norm:
                yield _ones(f"{at}.attn_q_norm.weight", spec.head_dim)
                yield _ones(f"{at}.attn_k_norm.weight", spec.head_dim)
            if spec.attention_sinks:
                yield self._bias(f"{at}.attn_sinks.weight", (spec.n_heads,))
            yield from self._linear(
                f"{at}.attn_output", (width, heads), spec.attention_output_bias, _QUIET
            )
            yield _ones(f"{at}.{self.second_norm}.weight", width)
            yield _given(f"{at}.ffn_gate_inp.weight", self._router(layer))
            if experts.router_bias:
                yield self._bias(f"{at}.ffn_gate_inp.bias", (count,))
            for name, shape, halvings in (
                ("gate", (count, neurons, width), 0),
                ("up", (count, neurons, width), 0),
                ("down", (count, width, neurons), _QUIET),
            ):
                own = self.expert_encoding
                yield from self._linear(f"{at}.ffn_{name}_exps", shape, experts.bias, halvings, own)

    def _linear(
        self,
        name: str,
        shape: tuple[int, ...],
        bias: bool,
        halvings: int = 0,
        encoding: Encoding | None = None,
    ) -> Iterator[Tensor]:
        """Random matrices [..., out, in], and [..., out] added to what they give."""
        yield self._random(f"{name}.weight", shape, halvings, encoding or self.encoding)
        if bias:
            yield self._bias(f"{name}.bias", shape[:-1])

    def _bias(self, name: str, shape: tuple[int, ...]) -> Tensor:
        random = np.random.default_rng((self.seed, _stream(name)))
        return _given(name, random.uniform(-_SMALL, _SMALL, shape).astype(np.float32))

    def _random(
        self, name: str, shape: tuple[int, ...], halvings: int, encoding: Encoding
    ) -> Tensor:
        stream = _stream(name)

        def rows(first: int, count: int) -> NDArray[np.uint8]:
            random = np.random.Generator(np.random.SFC64((self.seed, stream, first)))
            found = encoding.random(random, count, shape[-1]).view(np.uint8)
            groups = found.reshape(-1, encoding.group_bytes)
            if encoding.name == "mxfp4":
                groups[:, 0] -= np.uint8(halvings)  # exponents; signs are even
                return found
            halves = groups[:, :2].view(np.float16)
            halves *= np.float16(0.5**halvings)
            scales = halves.view(np.uint16)
            # Of four bits more numbers are below zero than above: signs make the mean zero.
            signs = random.integers(0, 2, len(scales), np.uint16)
            scales |= (signs << 15)[:, None]
            return found

        return Tensor(name, shape, encoding.name, rows)

    def _embedding(self, first: int, count: int) -> NDArray[np.uint8]:
        ids = np.arange(first, first + count)
        return self._one_each(self.columns[ids % self.codes], CODE)

    def _head(self, first: int, count: int) -> NDArray[np.uint8]:
        """Row n + 1 has the column of code n; those behind the codes have nothing."""
        ids = np.arange(first, first + count)
        rows = self._one_each(self.columns[(ids - 1) % self.codes], LOGIT_ROW)
        rows[ids >= self.codes] = self._one_each(np.zeros(1, np.int64), 0.0)
        return rows

    def _one_each(self, columns: NDArray[np.int64], value: float) -> NDArray[np.uint8]:
        """Rows of zeros but for one column each, [n, row bytes]."""
        halves = self.encoding.name == "q4_0"
        zero, most = (0x88, -8) if halves else (0, 127)
        groups = self.spec.d_model // self.encoding.group
        found = np.zeros((len(columns), groups, self.encoding.group_bytes), np.uint8)
        found[:, :, 2:] = zero
        rows, group = np.arange(len(columns)), columns // self.encoding.group
        within = columns % self.encoding.group
        scale = np.array([value / most], np.float16).view(np.uint8)
        found[rows, group, 0], found[rows, group, 1] = scale
        if not halves:
            found[rows, group, 2 + within] = most if value else zero
            return found.reshape(len(columns), -1)
        half = self.encoding.group // 2
        # A byte holds two numbers, 8 added to each: -8 times the scale is the value.
        low = within < half
        place = 2 + np.where(low, within, within - half)
        found[rows, group, place] = np.where(low, 0x80, 0x08) if value else zero
        return found.reshape(len(columns), -1)

    def _router(self, layer: int) -> NDArray[np.float32]:
        experts = self.spec.experts
        assert experts is not None
        random = np.random.default_rng((self.seed, 2, layer))
        router = np.zeros((experts.n_experts, self.spec.d_model), np.float32)
        chosen = self.sets[layer]  # [codes, experts a token]
        logits = random.uniform(ROUTER_LEAST, ROUTER_MOST, chosen.shape)
        # What the norm makes of a token's one large number.
        seen = np.sqrt(self.spec.d_model)
        router[chosen, self.columns[:, None]] = logits / seen
        return router


def _stream(name: str) -> int:
    """A number of its own for each tensor."""
    return int(sum(value * 131**at for at, value in enumerate(name.encode())) % (1 << 63))


def _given(name: str, values: NDArray[np.float32]) -> Tensor:
    flat = values.reshape(-1, values.shape[-1])

    def rows(first: int, count: int) -> NDArray[np.uint8]:
        return np.ascontiguousarray(flat[first : first + count]).view(np.uint8)

    return Tensor(name, values.shape, "f32", rows)


def _ones(name: str, width: int) -> Tensor:
    return Tensor(name, (width,), "f32", lambda _first, _count: _ONES[:width].view(np.uint8))
