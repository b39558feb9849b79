"""Describes a converted model from its manifest, without loading it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flashllm.errors import PromptTooLong, UsageError
from flashllm.flash.file_names import PREDICTORS_FILE
from flashllm.flash.model_files import ModelFiles
from flashllm.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a converted model is, from its manifest."""

    name: str
    directory: str
    spec: ModelSpec
    has_predictors: bool
    has_tokenizer: bool
    synthetic: bool
    file_bytes: dict[str, int]
    source: dict[str, Any]
    layout_version: int
    bundle_stride_bytes: int
    activity: dict[str, Any] | None
    """Mean sparsity, errors of the predictors, and the ratio of predicted to dense perplexity,
    where known."""
    predictor_dtype: str | None = None
    """Encoding of the predictors' matrices, if there are any."""

    def check_prompt(self, ids: Sequence[int], context: int) -> None:
        """`UsageError` for invalid `ids`, `PromptTooLong` for more than the context holds."""
        if not len(ids):
            raise UsageError("the prompt is empty; give it at least one token")
        vocab = self.spec.vocab_size
        for token in ids:
            if not 0 <= token < vocab:
                raise UsageError(f"token id {token} is outside the vocabulary of {vocab}")
        if len(ids) > context:
            raise PromptTooLong(
                f"the prompt has {len(ids)} tokens and the context {context};"
                " shorten it, or open the model with a larger --ctx-size"
                f" (this model can do {self.spec.max_positions})"
            )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**dataclasses.asdict(self), "spec": self.spec.to_json()}


def describe(files: ModelFiles, has_tokenizer: bool) -> ModelInfo:
    """The description from a model's manifest and recording."""
    manifest = files.manifest
    activity = files.load_activity()
    return ModelInfo(
        name=manifest.name,
        directory=str(files.directory),
        spec=files.spec,
        has_predictors=PREDICTORS_FILE in manifest.files,
        has_tokenizer=has_tokenizer,
        synthetic=manifest.synthetic,
        file_bytes={name: record.bytes for name, record in manifest.files.items()},
        source=manifest.source,
        layout_version=manifest.layout_version,
        bundle_stride_bytes=files.header.stride,
        activity=_shares(activity) if activity else None,
        predictor_dtype=files.predictor_dtype(),
    )


def _shares(activity: dict[str, Any]) -> dict[str, Any]:
    mean = activity.get("mean")
    shares = dict(mean) if isinstance(mean, dict) else {}
    dense, predicted = activity.get("perplexity_dense"), activity.get("perplexity_predicted")
    if isinstance(dense, float) and isinstance(predicted, float) and dense > 0:
        shares["perplexity_ratio"] = predicted / dense
    return shares
