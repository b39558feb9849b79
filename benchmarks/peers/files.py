"""The files that the contenders run on, and whether they belong together."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from flashllm.convert import describe
from flashllm.convert.families.opening import open_source

from flashllm.errors import UsageError
from flashllm.flash.manifest import Manifest, read_manifest
from flashllm.spec import ModelSpec

HEAD = "lm_head.weight"
SAME = (
    "n_layers", "d_model", "n_heads", "n_kv_heads", "d_ffn", "vocab_size", "rows_per_neuron",
    "dtype",
)  # fmt: skip
QUANTISED = ("int8", "int4", "mxfp4")
"""Encodings that no checkpoint has: what a conversion makes of any."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint, or a model in GGUF, as the contenders see it."""

    directory: Path
    spec: ModelSpec
    parameters: int
    """A head that is the embedding once more is not counted twice."""
    files: tuple[Path, ...]
    """Those with weights."""

    @property
    def weight_bytes(self) -> int:
        """Size of the files with weights."""
        return sum(path.stat().st_size for path in self.files)


def read_checkpoint(source: Path) -> Checkpoint:
    """From its configuration and the headers of its files; errors as those of `convert`."""
    spec = describe(source)
    with open_source(source) as opened:
        tensors, directory = opened.tensors, opened.directory
        names = sorted({tensor.file for tensor in tensors.values()})
    elements = {name: prod(tensor.shape) for name, tensor in tensors.items()}
    if spec.tied_head:
        elements.pop(HEAD, None)
    return Checkpoint(
        directory,
        spec,
        sum(elements.values()),
        tuple(directory / name for name in names),
    )


def read_model(directory: Path, checkpoint: Checkpoint) -> Manifest:
    """The manifest of a converted model; `UsageError` where it is not that checkpoint's."""
    manifest = read_manifest(directory)
    ours, theirs = manifest.spec, checkpoint.spec
    different = [
        f"{name} {getattr(ours, name)} and {getattr(theirs, name)}"
        for name in SAME
        if getattr(ours, name) != getattr(theirs, name)
        and not (name == "dtype" and ours.dtype in QUANTISED)
    ]
    if different:
        raise UsageError(
            f"{directory} was not made from {checkpoint.directory}: {', '.join(different)}; "
            "compare a checkpoint with its own conversion"
        )
    return manifest


def model_files(directory: Path, manifest: Manifest) -> tuple[Path, ...]:
    """The files of a converted model."""
    return tuple(directory / name for name in sorted(manifest.files))
