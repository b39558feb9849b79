"""From a converted model and a text to predictors: record, train, judge, write.

Layers are recorded and trained in groups that fit on the disk. Finished work is kept in a work
directory until everything is done, so that the same command run again continues an interrupted one:
a recording from its last whole context, training from its last whole layer, judging from its start.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from flashllm.errors import CannotCreate, Interrupted, ReadFailed
from flashllm.progress import Progress, SilentProgress

from .calibration_texts import TOKENS_MAX, Context, find_calibration
from .files import write_predictors
from .fit import passes_over
from .in_loop import bounded, judge
from .layer import TrainedLayer, layer_tokens, train_layer
from .model import ConvertedModel, TrainableModel, check_trainable
from .record import GroupRecording, Text, next_group
from .recorded_rows import RowShape
from .report import Judgement, Report
from .resumable import WorkDirectory, default_work, key_of
from .split import Split, contexts_of, split_contexts
from .targets import FALSE_POSITIVES_WARNED, Targets

# A layer of about a minute's work: below it, threads gain little, and where other programs keep
# the cores busy they wait for each other (measured: two took eight times as long as one).
OPERATIONS_OF_ONE_THREAD = 3e12
USUAL_RANK = 128


@dataclass(frozen=True, slots=True)
class Task:
    """A training task: ordered contexts, their split, and targets."""

    model: TrainableModel
    contexts: Sequence[Context]
    split: Split
    targets: Targets
    seed: int
    dtype: str = "f16"
    """How the predictors' matrices are stored."""

    @classmethod
    def of(
        cls,
        model: TrainableModel,
        contexts: Sequence[Context],
        targets: Targets,
        seed: int,
        dtype: str = "f16",
    ) -> Task:
        """With the contexts split."""
        split = split_contexts([len(ids) for ids in contexts])
        return cls(model, contexts, split, targets, seed, dtype)

    @property
    def shape(self) -> RowShape:
        """Widths of what is recorded."""
        return RowShape(self.model.spec.d_model, self.model.spec.d_ffn)

    @property
    def tokens(self) -> int:
        """Tokens of all contexts."""
        return self.split.report.stop

    @property
    def key(self) -> str:
        """Hash of all that the result depends on."""
        ids = hashlib.sha256()
        for context in self.contexts:
            ids.update(np.array([len(context), *context], np.int64).tobytes())
        return key_of(
            model=self.model.identity,
            spec=self.model.spec.to_json(),
            contexts=ids.hexdigest(),
            targets=asdict(self.targets),
            seed=self.seed,
            dtype=self.dtype,
        )


def train_predictors(
    directory: Path,
    output: Path,
    calibration: Path | None = None,
    progress: Progress | None = None,
    seed: int = 0,
    *,
    tokens_max: int = TOKENS_MAX,
    targets: Targets | None = None,
    work: Path | None = None,
    dtype: str = "f16",
) -> Report:
    """Train the predictors of the converted model in `directory` and write them to `output`.

    The same model, text and seed give the same bytes on the same machine, interrupted or not. At
    most `tokens_max` tokens of the text are used. Unfinished work is kept in `work`, by default
    next to `output`. `dtype` (f16, int8, int4) is the encoding of the matrices, for which
    thresholds and errors hold. Raises `UsageError` for an unsuitable model or text,
    `NotEnoughSpace`, and `Interrupted` on Ctrl-C; then `output` is unchanged.
    """
    progress = progress or SilentProgress()
    model = ConvertedModel(directory)
    check_trainable(directory, model.spec)
    text = find_calibration(directory, calibration)
    work = work or default_work(output)
    try:
        _make_directory(output)
        contexts = model.contexts(text, tokens_max, seed, progress)
        task = Task.of(model, contexts, targets or Targets(), seed, dtype)
        return train(task, output, work, progress)
    except KeyboardInterrupt:
        then = "to start again"
        if work.exists():
            then = f"again to continue it, or remove what is done, {work}"
        raise Interrupted(f"training of predictors stopped; run the same command {then}") from None


def train(task: Task, output: Path, work: Path, progress: Progress) -> Report:
    """Trains, judges and writes; removes `work`."""
    for part in (task.split.tune, task.split.report):
        bounded(contexts_of(task.contexts, part))  # what cannot be judged is told before the work
    with WorkDirectory(work, task.key) as directory:
        layers = train_layers(task, directory, progress)
        number, judgement = _judge(task, layers, progress)
        choices = [layer.choices[number] for layer in layers]
        report = Report(
            task.tokens,
            len(task.split.report),
            tuple(choice.errors for choice in choices),
            tuple(choice.use for choice in choices),
            tuple(layer.oracle for layer in layers),
            judgement,
        )
        _warn_of_false_positives(report, task.targets, progress)
        thresholds = [choice.threshold for choice in choices]
        write_predictors(output, [layer.predictor for layer in layers], thresholds, report)
        directory.remove()
    return report


def _warn_of_false_positives(report: Report, targets: Targets, progress: Progress) -> None:
    found = report.mean["false_positives"]
    if found >= FALSE_POSITIVES_WARNED * targets.false_positives:
        progress.warn(
            f"predictors read {found:.0%} of the silent neurons needlessly, and the target is "
            f"{targets.false_positives:.0%}; a longer calibration text helps where the model can "
            "be predicted at all, else --select all may be as fast"
        )


def _judge(task: Task, layers: Sequence[TrainedLayer], progress: Progress) -> tuple[int, Judgement]:
    """Judges in the loop, then drops the decoder, since writing takes memory of its own."""
    with task.model.open(task.contexts) as decoder:
        return judge(
            decoder,
            lambda tensors: task.model.use(decoder, tensors),
            layers,
            contexts_of(task.contexts, task.split.tune),
            contexts_of(task.contexts, task.split.report),
            task.targets,
            task.shape.row_bytes * task.model.spec.n_layers,
            progress,
        )


def train_layers(task: Task, work: WorkDirectory, progress: Progress) -> list[TrainedLayer]:
    """Trains all layers, group by group, except those that are already done."""
    numbers = range(task.model.spec.n_layers)
    left = [number for number in numbers if work.layer(number) is None]
    part = 0
    while left:
        group = next_group(work, left, task.shape, task.tokens)
        part += 1
        parts = part - 1 + math.ceil(len(left) / len(group))
        _train_group(task, work, group, f", part {part} of {parts}" if parts > 1 else "", progress)
        work.drop_recording()
        left = [number for number in left if number not in group]
    # Not kept during the training of others: together they can be as large as the training itself.
    layers = [layer for layer in map(work.layer, numbers) if layer is not None]
    if len(layers) < len(numbers):
        raise ReadFailed(
            f"{work.path}: a trained layer cannot be read back; check the disk, then run the same "
            "command again"
        )
    return layers


def _train_group(
    task: Task, work: WorkDirectory, group: Sequence[int], part: str, progress: Progress
) -> None:
    """Record the layers of a group, then train them one by one."""
    shape, split = task.shape, task.split
    text = Text(task.contexts, len(split.train))
    with GroupRecording(work, group, shape, text) as recording:
        left = task.contexts[recording.contexts_done :]
        if left:
            total_bytes = sum(map(len, left)) * len(group) * shape.row_bytes
            progress.start(f"recording activations{part}", total_bytes)
            with task.model.open(task.contexts) as decoder:
                recording.record(decoder, progress)
            del decoder  # its weights would only take memory from training
            progress.finish()
    tokens = layer_tokens(split, shape.d_model, shape.d_ffn)
    progress.start(f"training predictors{part}", len(group) * tokens * shape.row_bytes)
    with _threads(shape, len(split.train)):
        for number in group:
            with recording.data(number) as data:
                layer = train_layer(
                    data,
                    split,
                    functools.partial(task.model.up_projection, number),
                    recording.mean_margin(number),
                    task.model.bundle_bytes,
                    task.targets,
                    task.seed + number,
                    lambda seen: progress.advance(seen * shape.row_bytes),
                    task.dtype,
                )
            work.keep_layer(number, layer)
    progress.finish()


def _make_directory(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotCreate(f"{output}: cannot write here: {error.strerror}") from error


def operations_of_layer(shape: RowShape, train_tokens: int) -> float:
    """Multiplications and additions of training one layer of the usual rank."""
    seen = train_tokens * passes_over(train_tokens)
    return 6.0 * min(USUAL_RANK, shape.d_model) * (shape.d_model + shape.d_ffn) * seen


@contextlib.contextmanager
def _threads(shape: RowShape, train_tokens: int) -> Iterator[None]:
    """One thread where there is little to do, for the time of training."""
    before = torch.get_num_threads()
    if operations_of_layer(shape, train_tokens) < OPERATIONS_OF_ONE_THREAD:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
