"""Checkpoints to flash layout, and checks of the result.

`convert` writes a converted model, `convert_shards` one of a checkpoint that comes shard by shard,
`reorder` rewrites one in another order, `describe` says what it would be, `verify` checks one,
`demo_model` gives the one that comes with the package. The only package that knows names of
families and of Hugging Face.
"""

from __future__ import annotations

from flashllm.flash.demo_places import demo_directory, demo_source
from flashllm.progress import Progress, ProgressKind, progress_for

from .demo import demo_model
from .families.description import describe
from .output.destination import check_destination, check_space
from .output.reorder import reorder
from .output.tokenizer_files import brings_tokenizer
from .phases import ConversionPlan, Learning, PhaseWork, conversion_phases
from .pipeline import convert
from .source.arriving import ShardSource
from .source.checkpoint import WeightFiles, gguf_of, named_weights, weight_files, weight_files_of
from .source.files import source_file
from .stream import convert_shards
from .verify.report import Problem, VerifyReport
from .verify.verification import verify

__all__ = [
    "ConversionPlan",
    "Learning",
    "PhaseWork",
    "Problem",
    "Progress",
    "ProgressKind",
    "ShardSource",
    "VerifyReport",
    "WeightFiles",
    "brings_tokenizer",
    "check_destination",
    "check_space",
    "conversion_phases",
    "convert",
    "convert_shards",
    "demo_directory",
    "demo_model",
    "demo_source",
    "describe",
    "gguf_of",
    "named_weights",
    "progress_for",
    "reorder",
    "source_file",
    "verify",
    "weight_files",
    "weight_files_of",
]
