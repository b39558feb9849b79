"""Where predictors come from: trained, copied, published by others, or inside the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashllm.dtypes import DTYPE_BYTES
from flashllm.errors import TensorMismatch, UsageError
from flashllm.flash.manifest import ACTIVITY_FILE, PREDICTORS_FILE, FileRecord
from flashllm.progress import Progress, SilentProgress
from flashllm.spec import ModelSpec

from ..families.spec_from_config import Overrides
from ..families.transforms import read_whole
from ..output.destination import sync
from ..output.inspection import Job
from ..output.predictor_files import copy_predictors, encode_predictors
from ..source.checkpoint import Checkpoint
from ..source.encoding import encode
from ..source.files import sha256_of
from ..source.tensor import SourceTensor
from .published import import_published, write_published

Wish = str | Path
"""What --predictors says: one of the words below, or the path of what others made."""
NONE, TRAIN, INSIDE = "none", "train", "checkpoint"
COACTIVATION = "coactivation"
"""What --order says where neurons that are loaded together are to lie together."""
ORDERS = (NONE, COACTIVATION)
# Room kept for predictors that are yet to be trained, as if each were of this rank.
_RANK = 256

Matrix = NDArray[np.float32]


def imports(wish: Wish) -> bool:
    """Whether predictors exist already and are to be taken over."""
    return wish not in (NONE, TRAIN)


def check_wish(
    wish: Wish, spec: ModelSpec, calibration: Path | None, dtype: str | None = None
) -> None:
    """`UsageError` where predictors can do nothing for the model, or none need be trained.

    A calibration text trains predictors, and says of others and of gates how many neurons they let
    through; without either of them it is of no use.
    """
    if wish == NONE and dtype is not None:
        raise UsageError(
            f"--predictor-dtype {dtype}: there are to be no predictors; say which with --predictors"
        )
    if wish == NONE:
        if calibration is not None and not (spec.sparse and spec.gated):
            raise UsageError(
                f"--calibration {calibration}: there is nothing to measure or train with it; "
                + (
                    "predictors are trained with --predictors train"
                    if spec.sparse
                    else f"the activation of this model, {spec.activation}, is never zero; convert "
                    "it without, or say --act where it is wrong"
                )
            )
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


def check_order(order: str, spec: ModelSpec, wish: Wish, calibration: Path | None) -> None:
    """`UsageError` for an order that cannot be learnt, or would be of no use."""
    if order not in ORDERS:
        raise UsageError(f"--order {order}: expected one of {', '.join(ORDERS)}")
    if order == NONE:
        return
    chooses = imports(wish) or wish == TRAIN or (spec.sparse and spec.gate == "resident")
    if not chooses:
        raise UsageError(
            f"--order {order}: nothing would choose among the neurons of this model, so all are "
            "read whatever their order; "
            + ("give it --predictors" if spec.sparse else "convert it without")
        )
    if calibration is None and wish != TRAIN:
        raise UsageError(
            f"--order {order}: it is learnt from a text; give one with --calibration FILE"
        )


def needed_bytes(job: Job, wish: Wish, destination: Path, tokens: int) -> int:
    """Bytes that predictors will take at most, and to train them what so many tokens record."""
    spec = job.spec
    if wish == TRAIN:
        trained = 2 * _RANK * spec.n_layers * (spec.d_model + spec.d_ffn)
        return trained + _recording_bytes(spec, destination, tokens)
    if wish == INSIDE:
        tensors = [tensor for pair in job.assignment.predictors for tensor in pair]
        values = sum(tensor.nbytes // DTYPE_BYTES.get(tensor.dtype, 1) for tensor in tensors)
        return 4 * (values + spec.n_layers * spec.d_ffn)
    path = Path(wish)
    if path.is_file():
        return path.stat().st_size
    if not path.is_dir():
        return 0
    # What does not fit into f16 is written as f32.
    return 2 * sum(part.stat().st_size for part in path.glob("*.pt")) + 4 * spec.n_layers * (
        spec.d_ffn
    )


def _recording_bytes(spec: ModelSpec, destination: Path, tokens: int) -> int:
    """Free bytes to record one layer, the least that training goes on with."""
    from flashllm.predictors.calibration_texts import TOKENS_MAX
    from flashllm.predictors.recorded_rows import RowShape
    from flashllm.predictors.resumable import default_work, space_for

    row_bytes = RowShape(spec.d_model, spec.d_ffn).row_bytes
    needed: int = space_for(default_work(destination), min(tokens, TOKENS_MAX) * row_bytes)
    return needed


def take_predictors(job: Job, wish: Wish, directory: Path) -> dict[str, FileRecord]:
    """Writes the predictors that exist already to `directory`."""
    if wish == INSIDE:
        if not job.assignment.predictors:
            raise UsageError(f"--predictors {wish}: there are none in {job.source}")
        write_published(_inside(job), 0.0, job.spec, directory)
    elif Path(wish).is_dir():
        import_published(Path(wish), job.spec, directory)
    else:
        copy_predictors(Path(wish), directory, job.spec)
    if job.overrides.predictor_dtype is not None:
        encode_predictors(directory / PREDICTORS_FILE, job.spec, job.overrides.predictor_dtype)
    return records(directory)


def learn(
    wish: Wish,
    directory: Path,
    destination: Path,
    calibration: Path | None,
    overrides: Overrides,
    progress: Progress,
) -> dict[str, FileRecord]:
    """What a text teaches of the model that is complete in `directory`, written into it.

    Trains predictors, or measures what others or the gate let through. `destination` is where the
    model will be: training continues from what lies beside it.
    """
    from flashllm.predictors import measure_activity, measure_predictors, train_predictors
    from flashllm.predictors.resumable import default_work

    if wish == TRAIN:
        # The partial directory vanishes on an interruption; what was trained must not.
        work = default_work(destination)
        dtype = overrides.predictor_dtype or "f16"
        train_predictors(directory, directory, calibration, progress, work=work, dtype=dtype)
    elif imports(wish):
        measure_predictors(directory, calibration, progress)
    else:
        measure_activity(directory, calibration, progress)
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


def _matrix(checkpoint: Checkpoint, tensor: SourceTensor) -> Matrix:
    if tensor.dtype not in DTYPE_BYTES or len(tensor.shape) != 2:
        raise TensorMismatch(
            f"tensor {tensor.name} in {tensor.file} is {tensor.dtype} {list(tensor.shape)}; "
            f"expected a matrix in {', '.join(DTYPE_BYTES)}"
        )
    raw = encode(read_whole(checkpoint, tensor), tensor.dtype, "f32", tensor.name)
    return raw.view(np.float32).reshape(tensor.shape)
