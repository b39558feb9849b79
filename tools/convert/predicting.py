"""Where predictors come from: trained, copied, published by others, or inside the checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashllm.errors import TensorMismatch, UsageError
from flashllm.flash.layout import FileRecord
from flashllm.flash.manifest import ACTIVITY_FILE, PREDICTORS_FILE
from flashllm.spec import DTYPE_BYTES, ModelSpec

from .checkpoint import Checkpoint, SourceTensor
from .destination import sync
from .encoding import encode
from .files import sha256_of
from .job import Job
from .predictor_files import copy_predictors
from .progress import Progress, SilentProgress
from .published import published_layers, write_published
from .transforms import Piece, encoded_blocks, read_whole

Wish = str | Path
"""What --predictors says: one of the words below, or the path of what others made."""
NONE, TRAIN, INSIDE = "none", "train", "checkpoint"
# Room kept for predictors that are yet to be trained, as if each were of this rank.
_RANK = 256

Matrix = NDArray[np.float32]


def imports(wish: Wish) -> bool:
    """Whether predictors exist already and are to be taken over."""
    return wish not in (NONE, TRAIN)


def check_wish(wish: Wish, spec: ModelSpec) -> None:
    """`UsageError` where predictors can do nothing for the model, or none need be trained."""
    if wish == NONE:
        return
    if not spec.sparse:
        raise UsageError(
            f"--predictors {wish}: the activation of this model, {spec.activation}, is never zero, "
            "so there is nothing to predict; convert it without, or say --act where it is wrong"
        )
    if wish == TRAIN and spec.gated:
        raise UsageError(
            f"--predictors {wish}: this model has a gate that says exactly which neurons are "
            "active; it stays in memory and needs no predictors; convert it without"
        )


def needed_bytes(job: Job, wish: Wish) -> int:
    """Bytes that predictors will take at most."""
    spec = job.spec
    if wish == TRAIN:
        return 2 * _RANK * spec.n_layers * (spec.d_model + spec.d_ffn)
    if wish == INSIDE:
        tensors = [tensor for pair in job.assignment.predictors for tensor in pair]
        values = sum(tensor.nbytes // DTYPE_BYTES.get(tensor.dtype, 1) for tensor in tensors)
        return 4 * (values + spec.n_layers * spec.d_ffn)
    path = Path(wish)
    if path.is_file():
        return path.stat().st_size
    return sum(part.stat().st_size for part in path.glob("*.pt")) if path.is_dir() else 0


def take_predictors(job: Job, wish: Wish, directory: Path) -> dict[str, FileRecord]:
    """Writes the predictors that exist already to `directory`."""
    if wish == INSIDE:
        if not job.assignment.predictors:
            raise UsageError(f"--predictors {wish}: there are none in {job.source}")
        write_published(_behind_norm(job, wish, 0.0, _inside(job)), 0.0, job.spec, directory)
    elif Path(wish).is_dir():
        threshold, layers = published_layers(Path(wish), job.spec)
        write_published(_behind_norm(job, wish, threshold, layers), threshold, job.spec, directory)
    else:
        copy_predictors(Path(wish), directory, job.spec)
    return records(directory)


def train(directory: Path, calibration: Path | None, progress: Progress) -> dict[str, FileRecord]:
    """Trains predictors of the model that is complete in `directory`, into it."""
    from flashllm.predictors import train_predictors

    train_predictors(directory, directory, calibration, progress)
    return records(directory)


def records(directory: Path) -> dict[str, FileRecord]:
    """Size and hash of those of the predictors' files that exist, which are made durable."""
    found = {}
    for name in (PREDICTORS_FILE, ACTIVITY_FILE):
        path = directory / name
        if path.exists():
            sync(path)
            found[name] = FileRecord(path.stat().st_size, sha256_of(path, SilentProgress()))
    return found


def _inside(job: Job) -> Iterator[tuple[Matrix, Matrix]]:
    """fc1 [rank, d_model] and fc2 [d_ffn, rank] of each layer, as the checkpoint has them."""
    for first, second in job.assignment.predictors:
        yield _matrix(job.checkpoint, first), _matrix(job.checkpoint, second)


def _behind_norm(
    job: Job, wish: Wish, threshold: float, layers: Iterable[tuple[Matrix, Matrix]]
) -> Iterator[tuple[Matrix, Matrix]]:
    """Predictors that read what the norm reads, made to read what it puts out, as ours do.

    So all that are published were trained, and so PowerInfer feeds them. An RMS norm divides by one
    number above 0 and multiplies by its weight: with relu between two matrices without biases and
    a threshold of 0 the number changes no sign, and the weight is divided out of fc1. A layer
    norm also takes the mean away, which nothing brings back.
    """
    if job.spec.norm != "rms" or threshold:
        reason = (
            f"their threshold is {threshold:g}, and only 0 means the same on both sides of it"
            if threshold
            else "what a layer norm puts out does not tell what that was"
        )
        raise UsageError(
            f"--predictors {wish}: these read what lies before a norm, and {reason}; convert with "
            "--predictors none, or train others where there is no gate"
        )
    for layer, (fc1, fc2) in enumerate(layers):
        name = f"layers.{layer}.{'attn_norm' if job.spec.shared_norm else 'ffn_norm'}.weight"
        weight = _vector(job.checkpoint, job.assignment.resident[name])
        if fc1.ndim != 2 or fc1.shape[1] != len(weight):
            raise TensorMismatch(
                f"predictor of layer {layer}: fc1 is {list(fc1.shape)}; this model needs "
                f"[rank, {len(weight)}]"
            )
        if not weight.all():
            raise TensorMismatch(
                f"predictor of layer {layer}: the norm in front has weights of 0, which fc1 cannot "
                "be divided by; convert with --predictors none"
            )
        yield fc1 / weight, fc2


def _vector(checkpoint: Checkpoint, piece: Piece) -> Matrix:
    blocks = [block.copy() for block in encoded_blocks(checkpoint, piece, "f32")]
    return np.concatenate(blocks).view(np.float32)


def _matrix(checkpoint: Checkpoint, tensor: SourceTensor) -> Matrix:
    if tensor.dtype not in DTYPE_BYTES or len(tensor.shape) != 2:
        raise TensorMismatch(
            f"tensor {tensor.name} in {tensor.file} is {tensor.dtype} {list(tensor.shape)}; "
            f"expected a matrix in {', '.join(DTYPE_BYTES)}"
        )
    raw = encode(read_whole(checkpoint, tensor), tensor.dtype, "f32", tensor.name)
    return raw.view(np.float32).reshape(tensor.shape)
