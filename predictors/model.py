"""A converted model for training: a decoder that records and scores, and the true weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from flashllm import core
from flashllm.errors import UsageError
from flashllm.flash.file_names import BUNDLES_FILE, RESIDENT_FILE
from flashllm.flash.layout import read_header
from flashllm.flash.manifest import read_manifest
from flashllm.flash.raw_tensor import RawTensor
from flashllm.options import DEFAULT_CONTEXT, Select
from flashllm.progress import Progress
from flashllm.spec import ModelSpec

from .calibration_texts import Context, ContextLimits, read_contexts
from .in_loop import ScoringDecoder
from .record import TappedDecoder
from .up_projections import UpProjections

if TYPE_CHECKING:
    from flashllm.model.decoder import Decoder


class TrainingDecoder(TappedDecoder, ScoringDecoder, Protocol):
    """A decoder that can record and score."""


class TrainableModel(Protocol):
    """What training needs of a model."""

    @property
    def spec(self) -> ModelSpec:
        """Its features."""

    @property
    def bundle_bytes(self) -> int:
        """Bytes read from flash for one neuron."""

    @property
    def identity(self) -> dict[str, str]:
        """Identifies the model."""

    def open(self, contexts: Sequence[Context]) -> AbstractContextManager[TrainingDecoder]:
        """A decoder for these contexts, whose memory is free again afterwards."""

    def use(self, decoder: Any, tensors: Mapping[str, RawTensor]) -> None:
        """Make a decoder select by these predictors."""

    def up_projection(self, layer: int) -> torch.Tensor:
        """True weights [d_ffn, d_model] in float32."""


class ConvertedModel:
    """The model in a directory; keeps nothing in memory between calls."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._manifest = read_manifest(directory)
        self._header = read_header(directory / BUNDLES_FILE)

    @property
    def spec(self) -> ModelSpec:
        """Its features."""
        return self._manifest.spec

    @property
    def bundle_bytes(self) -> int:
        """Bytes read from flash for one neuron."""
        return self._header.stride

    @property
    def identity(self) -> dict[str, str]:
        """Hashes of the files that hold its weights."""
        files = self._manifest.files
        hashes = {name: files[name].sha256 for name in (BUNDLES_FILE, RESIDENT_FILE)}
        return {"file_id": self._header.file_id.hex(), **hashes}

    @contextmanager
    def open(self, contexts: Sequence[Context], select: Select | None = None) -> Iterator[Decoder]:
        """A decoder for these contexts, in as little memory as possible."""
        # Above the runtime: what only wants a report should not load it.
        from flashllm.engine.loading import open_decoder

        with open_decoder(
            self.directory, select=select, context=max(map(len, contexts))
        ) as decoder:
            yield decoder

    def use(self, decoder: Any, tensors: Mapping[str, RawTensor]) -> None:
        """Make a decoder select by these predictors."""
        from flashllm.model.active_set_selectors import SelectPredicted
        from flashllm.system.processors import compute_threads

        kernels = core.Kernels(threads=compute_threads())
        decoder.use(SelectPredicted(tensors, self.spec, kernels))

    def up_projection(self, layer: int) -> torch.Tensor:
        """True weights of a layer, read from its bundles."""
        with closing(UpProjections(self.directory)) as projections:
            return projections.layer(layer)

    def contexts(self, text: Path, tokens_max: int, seed: int, progress: Progress) -> list[Context]:
        """The calibration text as contexts of token ids that the model takes."""
        from flashllm.tokenizer.tokenizer import load_tokenizer

        tokenizer, spec = load_tokenizer(self.directory), self.spec
        bos_id = tokenizer.bos_id if tokenizer is not None else spec.bos_id
        longest = min(spec.max_positions, DEFAULT_CONTEXT)
        limits = ContextLimits(spec.vocab_size, longest, tokens_max, bos_id)
        return read_contexts(text, tokenizer, limits, seed, progress)


def check_trainable(where: object, spec: ModelSpec) -> None:
    """`UsageError` for a model for which predictors are of no use, with the reason."""
    if spec.experts is not None:
        raise UsageError(
            f"{where}: its router says exactly which experts a token needs, so there is nothing to"
            " predict; convert it without --predictors"
        )
    if not spec.sparse:
        raise UsageError(
            f"{where}: its activation is {spec.activation}, which is zero for no neuron, so there "
            "is nothing to predict; convert it without --predictors, it runs with --select all"
        )
    if spec.gated:
        raise UsageError(
            f"{where}: its neurons have a gate, which decides exactly which are active; convert it "
            "without --predictors train, it runs with --select gate"
        )
