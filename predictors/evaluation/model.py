"""The model under evaluation, opened once in little memory, and its entry in reports."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import flashllm
from flashllm.engine.loading import open_decoder
from flashllm.flash.store import Store
from flashllm.large_arrays import Floats
from flashllm.options import (
    DEFAULT_OPTIONS,
    KvDType,
    KvPolicy,
    ModelOptions,
    Select,
    Verify,
)
from flashllm.planning.model_facts import choose_selector
from flashllm.spec import ModelSpec
from flashllm.tokenizer.tokenizer import Tokenizer, load_tokenizer

from .memory import chunk_tokens, evaluation_bytes

Tap = Callable[[int, Floats, Floats], None]
Chosen = Callable[[int, list[NDArray[np.int32]]], None]

EXACT = ("all", "oracle", "router")
"""Exact selectors, which need no run besides the dense one and the oracle's."""
LOSSY = "predicted"
"""The only selector that may leave out a neuron that is not zero."""


class Decoder(Protocol):
    """The part of a decoder that is needed here: it computes whole texts, in each mode."""

    spec: ModelSpec
    selects: Select

    kv_dtype: KvDType
    """Encoding of keys and values."""

    @property
    def context_tokens(self) -> int:
        """Tokens that a context can hold."""

    def logits_blocks(
        self,
        ids: Sequence[int],
        mode: Any = "dense",
        tap: Tap | None = None,
        chosen: Chosen | None = None,
    ) -> Iterator[NDArray[np.float32]]:
        """Logits of a new context, block by block; see `flashllm.model.decoder`."""

    def choose(self, layer: int, x: NDArray[np.float32]) -> NDArray[np.int32]:
        """The ids that the selector selects for one feed-forward input."""


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """A decoder, its tokenizer, and facts about the model's files."""

    directory: Path
    name: str
    stride_bytes: int
    source: dict[str, Any]
    decoder: Decoder
    tokenizer: Tokenizer | None
    verify: Verify | None = None
    seen: ModelOptions = DEFAULT_OPTIONS
    """Where keys and values are, and which of them an answer sees."""

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        directory: Path,
        select: Select | None,
        kv_dtype: KvDType | None = None,
        verify: Verify | None = None,
        memory: int | None = None,
        seen: ModelOptions = DEFAULT_OPTIONS,
    ) -> Iterator[EvaluatedModel]:
        """Opens a converted model; `UsageError` for a selector that it does not have.

        `kv_dtype` is the encoding of keys and values, for all that is compared; `verify` says which
        weights are held against their checksums. `memory` is the ceiling of the process, in bytes,
        what is counted included; None: as little as possible. `seen` says where keys and values
        are, which of them an answer sees, and how vectors are rounded.
        """
        with Store(directory) as store:
            chosen = choose_selector(store, select)
            name, stride = store.manifest.name, store.header.stride
            source = dict(store.manifest.source)
        tokenizer = load_tokenizer(directory)
        with open_decoder(
            directory,
            select=chosen,
            kv_dtype=kv_dtype,
            kv_memory=seen.kv_memory,
            kv_dir=seen.kv_dir,
            kv_victims=seen.kv_victims,
            arithmetic=seen.arithmetic,
            verify=verify,
            memory=memory,
            application_bytes=evaluation_bytes(store.spec, stride),
            chunk_tokens=chunk_tokens(store.spec, stride),
            **seen.kv_overrides,
        ) as decoder:
            yield cls(directory, name, stride, source, decoder, tokenizer, verify, seen)

    @property
    def selector(self) -> Select | None:
        """The selector to be judged; None if all neurons are read."""
        return None if self.decoder.selects in EXACT else self.decoder.selects

    @property
    def modes(self) -> dict[str, str]:
        """The modes, by their names in reports; the dense one comes first."""
        modes = {"dense": "dense"}
        if self.decoder.spec.sparse:
            modes["oracle"] = "oracle"
        if self.selector is not None:
            modes[self.selector] = "selected"
        if self.kv_policy != "full":
            # Where neurons are predicted, they are in this mode, too.
            modes[self.kv_policy] = "decoded"
        return modes

    @property
    def kv_policy(self) -> KvPolicy:
        """Which keys and values an answer sees."""
        return self.seen.kv_selection.policy

    def to_json(self) -> dict[str, Any]:
        """What was evaluated, and by which versions."""
        spec = self.decoder.spec
        return {
            "model": self.name,
            "directory": str(self.directory),
            "layers": spec.n_layers,
            "neurons_per_layer": spec.d_ffn,
            "activation": spec.activation,
            "bundle_stride_bytes": self.stride_bytes,
            "select": self.decoder.selects,
            "lossy": self.decoder.selects == LOSSY or self.kv_policy != "full",
            "kv_dtype": self.decoder.kv_dtype,
            "kv_policy": self.kv_policy,
            "source": self.source,
            "versions": {
                "flashllm": flashllm.__version__,
                "python": platform.python_version(),
                "numpy": np.__version__,
            },
        }
