"""Where predictors come from: trained, copied, published by others, or inside the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashllm.dtypes import DTYPE_BYTES
from flashllm.errors import TensorMismatch, UsageError
from flashllm.flash.file_names import ACTIVITY_FILE, PREDICTORS_FILE
from flashllm.flash.manifest import FileRecord
from flashllm.progress import Progress, SilentProgress
from flashllm.spec import ModelSpec
from flashllm.system.atomic_file import sync

from ..families.spec_from_config import Overrides
from ..families.transforms import read_whole
from ..output.inspection import Job
from ..output.predictor_files import copy_predictors, encode_predictors
from ..output.tensor_checksums import hash_tensors
from ..source.checkpoint import Checkpoint
from ..source.encoding import encode
from ..source.files import sha256_of
from ..source.pickled import check_allowed
from ..source.tensor import SourceTensor
from .published import FIRST_FILE, import_published, write_published

PredictorOrigin = str | Path
"""The value of --predictors: one of the words below, or the path of published predictors."""
NONE, TRAIN, INSIDE = "none", "train", "checkpoint"
COACTIVATION = "coactivation"
"""The value of --order that places neurons next to each other that are loaded together."""
ORDERS = (NONE, COACTIVATION)
# Room kept for predictors that are yet to be trained, as if each were of this rank.
_RANK = 256

Matrix = NDArray[np.float32]


def imports(origin: PredictorOrigin) -> bool:
    """Whether existing predictors are taken over."""
    return origin not in (NONE, TRAIN)


def check_origin(
    origin: PredictorOrigin,
    spec: ModelSpec,
    calibration: Path | None,
    dtype: str | None = None,
    allow_pickle: bool = False,
) -> None:
    """`UsageError` where predictors are of no use for the model, or need not be trained.

    A calibration text is for training predictors, or for counting how many neurons other
    predictors or a gate let through; it is an error where there are neither. A folder of them
    holds pickles, which must be allowed.
    """
    if spec.experts is not None and (origin != NONE or calibration is not None):
        what = f"--predictors {origin}" if origin != NONE else f"--calibration {calibration}"
        raise UsageError(
            f"{what}: this model has experts, and its router says exactly which ones a token needs;"
            " convert it without"
        )
    if origin == NONE and dtype is not None:
        raise UsageError(
            f"--predictor-dtype {dtype}: there are to be no predictors; say which with --predictors"
        )
    if origin == NONE:
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
            f"--predictors {origin}: the activation of this model, {spec.activation}, is never "
            "zero, so there is nothing to predict; convert it without, or say --act where it is "
            "wrong"
        )
    if imports(origin) and origin != INSIDE and (Path(origin) / FIRST_FILE).is_file():
        check_allowed(Path(origin) / FIRST_FILE, allow_pickle)
    if origin == TRAIN and spec.gated:
        raise UsageError(
            f"--predictors {origin}: this model has a gate that says exactly which neurons are "
            "active; it stays in memory and needs no predictors; convert it without"
        )


def check_order(
    order: str, spec: ModelSpec, origin: PredictorOrigin, calibration: Path | None
) -> None:
    """`UsageError` for an order that cannot be learnt or would be of no use."""
    if order not in ORDERS:
        raise UsageError(f"--order {order}: expected one of {', '.join(ORDERS)}")
    if order == NONE:
        return
    if spec.experts is not None:
        raise UsageError(
            f"--order {order}: experts are read one by one, wherever they lie; convert it without"
        )
    chooses = imports(origin) or origin == TRAIN or (spec.sparse and spec.gate == "resident")
    if not chooses:
        raise UsageError(
            f"--order {order}: nothing would choose among the neurons of this model, so all are "
            "read whatever their order; "
            + ("give it --predictors" if spec.sparse else "convert it without")
        )
    if calibration is None and origin != TRAIN:
        raise UsageError(
            f"--order {order}: it is learnt from a text; give one with --calibration FILE"
        )


def needed_bytes(job: Job, origin: PredictorOrigin, destination: Path, tokens: int) -> int:
    """An upper bound of the predictors' bytes, and of the recording of `tokens` to train them."""
    spec = job.spec
    if origin == TRAIN:
        trained = 2 * _RANK * spec.n_layers * (spec.d_model + spec.d_ffn)
        return trained + _recording_bytes(spec, destination, tokens)
    if origin == INSIDE:
        tensors = [tensor for pair in job.assignment.predictors for tensor in pair]
        values = sum(tensor.nbytes // DTYPE_BYTES.get(tensor.dtype, 1) for tensor in tensors)
        return 4 * (values + spec.n_layers * spec.d_ffn)
    path = Path(origin)
    if path.is_file():
        return path.stat().st_size
    if not path.is_dir():
        return 0
    # What does not fit into f16 is written as f32.
    return 2 * sum(part.stat().st_size for part in path.glob("*.pt")) + 4 * spec.n_layers * (
        spec.d_ffn
    )


def _recording_bytes(spec: ModelSpec, destination: Path, tokens: int) -> int:
    """Free bytes needed to record one layer, the least that training can work with."""
    from flashllm.predictors.calibration_texts import TOKENS_MAX
    from flashllm.predictors.recorded_rows import RowShape
    from flashllm.predictors.resumable import default_work, space_for

    row_bytes = RowShape(spec.d_model, spec.d_ffn).row_bytes
    needed: int = space_for(default_work(destination), min(tokens, TOKENS_MAX) * row_bytes)
    return needed


def take_predictors(job: Job, origin: PredictorOrigin, directory: Path) -> dict[str, FileRecord]:
    """Writes existing predictors to `directory`."""
    if origin == INSIDE:
        if not job.assignment.predictors:
            raise UsageError(f"--predictors {origin}: there are none in {job.source}")
        write_published(_inside(job), 0.0, job.spec, directory)
    elif Path(origin).is_dir():
        import_published(Path(origin), job.spec, directory)
    else:
        copy_predictors(Path(origin), directory, job.spec)
    if job.overrides.predictor_dtype is not None:
        encode_predictors(directory / PREDICTORS_FILE, job.spec, job.overrides.predictor_dtype)
    return records(directory)


def learn(
    origin: PredictorOrigin,
    directory: Path,
    destination: Path,
    calibration: Path | None,
    overrides: Overrides,
    progress: Progress,
) -> dict[str, FileRecord]:
    """Trains predictors on a text, or measures what existing predictors or the gate let through.

    The model is complete in `directory`, and the result is written there. `destination` is where
    the model will be: an interrupted training is kept next to it and continues from there.
    """
    from flashllm.predictors import measure_activity, measure_predictors, train_predictors
    from flashllm.predictors.resumable import default_work

    if origin == TRAIN:
        # The partial directory vanishes on an interruption; what was trained must not.
        work = default_work(destination)
        dtype = overrides.predictor_dtype or "f16"
        train_predictors(directory, directory, calibration, progress, work=work, dtype=dtype)
    elif imports(origin):
        measure_predictors(directory, calibration, progress)
    else:
        measure_activity(directory, calibration, progress)
    return records(directory)


def records(directory: Path) -> dict[str, FileRecord]:
    """Size and hash of the predictors' files that exist; the files are synced to disk.

    The checksums of the predictors are written beside them.
    """
    found: dict[str, FileRecord] = {}
    predictors, activity = directory / PREDICTORS_FILE, directory / ACTIVITY_FILE
    if predictors.exists():
        sync(predictors)
        found |= hash_tensors(directory, PREDICTORS_FILE, SilentProgress())
    if activity.exists():
        sync(activity)
        record = FileRecord(activity.stat().st_size, sha256_of(activity, SilentProgress()))
        found[ACTIVITY_FILE] = record
    return found


def _inside(job: Job) -> Iterator[tuple[Matrix, Matrix]]:
    """fc1 [rank, d_model] and fc2 [d_ffn, rank] of each layer, from the checkpoint."""
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
