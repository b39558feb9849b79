"""What a model takes besides its slots, from which a ceiling is split. Pure arithmetic."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from flashllm.flash.row_memory import ROW_THREADS, rows_memory_bytes
from flashllm.flash.tensor_table import embedding_shape
from flashllm.options import ModelOptions
from flashllm.planning.activation_stats import Activity
from flashllm.planning.tokenizer_memory import READING_SHARE
from flashllm.planning.ways_to_read import THREAD_BYTES
from flashllm.spec import ModelSpec
from flashllm.units import MIB

EMBEDDING_LEAST_BYTES = 16 * MIB
"""Less of an embedding is not worth a read a token."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes that a model needs besides its slots, and its recorded activity."""

    interpreter: int
    """Resident memory of the process before the model is loaded."""
    embeddings: int
    attention: int
    """All resident tensors except embeddings: attention, norms, biases, head, gates."""
    predictors: int
    stride: int
    predictor_dtype: str = "f16"
    """Encoding of the predictors' matrices."""
    activity: Activity | None = None
    """What tokens use, where it was recorded."""
    tokenizer: int = 0
    """Of a model that came with one."""
    application: int = 0
    """The part of the ceiling that another process may take: the terminal application."""
    own_embedding: int = 0
    """Of the embeddings, the matrix that is looked up a row a token, where the head is another one:
    it may stay on flash."""

    def may_leave_embedding(self, options: ModelOptions) -> bool:
        """Whether that matrix is large enough for it; with a device it is in DRAM."""
        own_bytes = self.own_embedding
        return own_bytes > 0 and own_bytes >= EMBEDDING_LEAST_BYTES and options.device is None

    def with_embedding_on_flash(self, spec: ModelSpec) -> Sizes:
        """The same without that matrix in memory, but with what reading its rows takes."""
        rows = rows_memory_bytes(*embedding_shape(spec)) + ROW_THREADS * THREAD_BYTES
        return dataclasses.replace(self, embeddings=self.embeddings - self.own_embedding + rows)

    @property
    def before_weights(self) -> int:
        """The most that there is at once before weights are read: while a tokenizer is."""
        return self.interpreter + self.application + READING_SHARE * self.tokenizer
