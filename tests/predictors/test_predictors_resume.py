"""Recording in groups, and training that goes on where it was interrupted."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from flashllm.predictors.files import PREDICTORS_FILE
from flashllm.predictors.record import GroupRecording, Text, next_group
from flashllm.predictors.recorded_rows import LayerData, RowShape, RowsOnDisk, unpack_active
from flashllm.predictors.report import FILE_NAME
from flashllm.predictors.resumable import WorkDirectory, default_work, space_for
from flashllm.predictors.train import train

from flashllm.errors import CannotCreate, NotEnoughSpace, ReadFailed, UsageError
from flashllm.progress import SilentProgress
from tests.support.predictor_models import D_FFN, D_MODEL, Stack, random_contexts, task_of

N_LAYERS = 3
CONTEXTS = random_contexts(60, 20)
TOKENS = 60 * 20
SHAPE = RowShape(D_MODEL, D_FFN)
LAYER_BYTES = TOKENS * SHAPE.row_bytes


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def task():
    return task_of(Stack(2, n_layers=N_LAYERS), CONTEXTS)


def contents(directory):
    return [(directory / name).read_bytes() for name in (PREDICTORS_FILE, FILE_NAME)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    output = tmp_path_factory.mktemp("uninterrupted")
    train(task(), output, output / "work", SilentProgress())
    assert not (output / "work").exists()
    return contents(output)


class Phases(SilentProgress):
    """Remembers phases; Ctrl-C after so many calls of `advance` in one of them."""

    def __init__(self, stop_in: str = "", after: int = 0) -> None:
        self.stop_in, self.left = stop_in, after
        self.phases: list[str] = []
        self.totals: list[int] = []
        self.done: list[int] = []

    def start(self, phase, total_bytes):
        self.phases.append(phase)
        self.totals.append(total_bytes)
        self.done.append(0)

    def advance(self, nbytes):
        self.done[-1] += nbytes
        if self.stop_in and self.phases[-1].startswith(self.stop_in):
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1


def allow_layers(monkeypatch, count):
    """A disk with room for the rows of so many layers at once."""
    monkeypatch.setattr(WorkDirectory, "free_bytes", lambda _: count * LAYER_BYTES + 100)


@pytest.mark.parametrize(
    ("stop_in", "after"),
    [
        ("recording", 0),
        ("recording", 17),
        ("recording", 59),
        ("training", 0),
        ("training", 200),
        ("perplexity with all", 0),
        ("perplexity with predicted neurons, round", 2),
        ("perplexity with predicted neurons, for", 0),
    ],
)
def test_interrupted_anywhere_and_run_again_the_files_are_the_same(
    tmp_path, uninterrupted, stop_in, after
):
    work, output = tmp_path / "work", tmp_path / "out"
    output.mkdir()
    with pytest.raises(KeyboardInterrupt):
        train(task(), output, work, Phases(stop_in, after))
    assert list(output.iterdir()) == []
    assert work.is_dir()
    again, phases = task(), Phases()
    train(again, output, work, phases)
    assert contents(output) == uninterrupted
    assert not work.exists()
    assert phases.done == phases.totals
    if stop_in == "recording":
        assert again.model.prefills == len(CONTEXTS) - (after + 1)
    else:
        assert again.model.prefills == 0


def test_a_decoder_interrupted_within_a_context_records_that_context_again(tmp_path, uninterrupted):
    first = task()
    tapped = itertools.count()
    prefill = first.model.prefill

    def stopping(ids, *, tap):
        def stopped(*arguments):
            if next(tapped) == 100:
                raise KeyboardInterrupt
            tap(*arguments)

        prefill(ids, tap=stopped)

    first.model.prefill = stopping
    with pytest.raises(KeyboardInterrupt):
        train(first, tmp_path, tmp_path / "work", SilentProgress())
    again = task()
    train(again, tmp_path, tmp_path / "work", SilentProgress())
    assert contents(tmp_path) == uninterrupted
    assert again.model.prefills == len(CONTEXTS) - 100 // (2 * N_LAYERS)


@pytest.mark.parametrize("room", [1, 2])
def test_layers_are_recorded_in_groups_that_the_disk_has_room_for(
    tmp_path, uninterrupted, monkeypatch, room
):
    allow_layers(monkeypatch, room)
    most = 0
    keep = WorkDirectory.keep_layer

    def watched(self, layer, trained):
        nonlocal most
        sizes = [path.stat().st_size for path in self.path.glob("rows-*")]
        most = max(most, sum(sizes))
        keep(self, layer, trained)

    monkeypatch.setattr(WorkDirectory, "keep_layer", watched)
    grouped, phases = task(), Phases()
    train(grouped, tmp_path, tmp_path / "work", phases)
    groups = -(-N_LAYERS // room)
    assert grouped.model.prefills == groups * len(CONTEXTS)
    assert most == room * LAYER_BYTES
    assert contents(tmp_path) == uninterrupted
    assert phases.phases[0] == f"recording activations, part 1 of {groups}"
    assert phases.phases[2] == f"recording activations, part 2 of {groups}"
    assert phases.done == phases.totals
    recorded = [t for p, t in zip(phases.phases, phases.totals, strict=True) if "recording" in p]
    assert sum(recorded) == N_LAYERS * LAYER_BYTES


def test_groups_go_on_after_an_interruption_in_the_second(tmp_path, uninterrupted, monkeypatch):
    allow_layers(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        train(task(), tmp_path, tmp_path / "work", Phases("recording activations, part 2", 30))
    again = task()
    train(again, tmp_path, tmp_path / "work", SilentProgress())
    assert contents(tmp_path) == uninterrupted
    assert again.model.prefills == 30 - 1 + len(CONTEXTS)


def test_a_killed_process_leaves_what_can_be_continued(tmp_path, uninterrupted):
    code = f"""
import os
from pathlib import Path
from tests.predictors.test_predictors_resume import Phases, task; from predictors.train import train
class Killed(Phases):
    def advance(self, nbytes):
        try:
            super().advance(nbytes)
        except KeyboardInterrupt:
            os._exit(9)
train(task(), Path({str(tmp_path)!r}), Path({str(tmp_path / "work")!r}), Killed("training", 300))
"""
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=False)
    assert done.returncode == 9
    again = task()
    train(again, tmp_path, tmp_path / "work", SilentProgress())
    assert contents(tmp_path) == uninterrupted
    assert again.model.prefills == 0


@pytest.mark.parametrize("change", ["seed", "contexts", "targets", "model"])
def test_work_of_another_task_is_discarded(tmp_path, change):
    with pytest.raises(KeyboardInterrupt):
        train(task(), tmp_path, tmp_path / "work", Phases("recording", 30))
    other = task()
    changes = {
        "seed": {"seed": 1},
        "contexts": {"contexts": [*CONTEXTS[1:], CONTEXTS[0]]},
        "targets": {"targets": dataclasses.replace(other.targets, false_negatives=0.02)},
        "model": {"model": Stack(3, n_layers=N_LAYERS)},
    }
    other = dataclasses.replace(other, **changes[change])
    train(other, tmp_path, tmp_path / "work", SilentProgress())
    assert other.model.prefills == len(CONTEXTS)


def test_a_damaged_recording_or_layer_is_made_again(tmp_path, uninterrupted):
    work = tmp_path / "work"
    with pytest.raises(KeyboardInterrupt):
        train(task(), tmp_path, work, Phases("training", 300))
    assert len(list(work.glob("layer-*"))) == 1
    next(work.glob("layer-*")).write_bytes(b"damaged")
    rows = next(work.glob("rows-*"))
    os.truncate(rows, rows.stat().st_size // 2)
    train(task(), tmp_path, work, SilentProgress())
    assert contents(tmp_path) == uninterrupted


def test_a_layer_that_cannot_be_read_back_is_said(tmp_path, monkeypatch):
    write = "flashllm.predictors.resumable.write_file"
    monkeypatch.setattr(write, lambda path, content: path.write_bytes(content[:100]))
    with pytest.raises(ReadFailed, match="cannot be read back"):
        train(task(), tmp_path, tmp_path / "work", SilentProgress())


def test_a_directory_that_was_never_ours_is_refused_and_left_alone(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "layer-0000").write_text("mine")
    with pytest.raises(CannotCreate, match="not of an unfinished training"):
        train(task(), tmp_path, tmp_path / "work", SilentProgress())
    assert (tmp_path / "work" / "layer-0000").read_text() == "mine"


def test_two_processes_do_not_share_the_work(tmp_path):
    with (
        WorkDirectory(tmp_path / "work", "a"),
        pytest.raises(CannotCreate, match="another process"),
        WorkDirectory(tmp_path / "work", "a"),
    ):
        pass
    assert not (tmp_path / "work").exists()  # nothing was done in it
    assert default_work(tmp_path / "out").name == "out.predictors-work"


def test_a_disk_too_small_for_one_layer_is_refused_before_anything_is_recorded(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(WorkDirectory, "free_bytes", lambda _: LAYER_BYTES - 1)
    full = task()
    message = "90% of what is free, less 64 MiB.*shorter calibration text"
    with pytest.raises(NotEnoughSpace, match=message):
        train(full, tmp_path, tmp_path / "work", SilentProgress())
    assert full.model.prefills == 0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_stops_with_what_to_do_and_can_go_on(
    tmp_path, uninterrupted, monkeypatch
):
    pwrite, calls = os.pwrite, itertools.count()

    def full(*arguments):
        if next(calls) > 150:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(*arguments)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(NotEnoughSpace, match="run the same command again"):
        train(task(), tmp_path, tmp_path / "work", SilentProgress())
    monkeypatch.setattr(os, "pwrite", pwrite)
    again = task()
    train(again, tmp_path, tmp_path / "work", SilentProgress())
    assert contents(tmp_path) == uninterrupted
    assert again.model.prefills == len(CONTEXTS) - 150 // (2 * N_LAYERS)


def test_free_space_leaves_some_to_others(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 10 << 30})()
    monkeypatch.setattr("flashllm.predictors.resumable.shutil.disk_usage", lambda _: usage)
    assert WorkDirectory(tmp_path, "a").free_bytes() == int(0.9 * (10 << 30)) - (64 << 20)


def test_the_space_for_a_recording_is_what_lets_it_be_made(tmp_path, monkeypatch):
    work = WorkDirectory(tmp_path, "a")
    for nbytes in (0, 1, LAYER_BYTES, 10 << 30):
        usage = type("Usage", (), {"free": space_for(tmp_path, nbytes)})()
        monkeypatch.setattr("flashllm.predictors.resumable.shutil.disk_usage", lambda _, u=usage: u)
        assert nbytes <= work.free_bytes() <= nbytes + 1
    # What was recorded already is continued, or makes room.
    before = space_for(tmp_path, 10 << 20)
    work.rows_path(1).write_bytes(bytes(5_000))
    assert space_for(tmp_path, 10 << 20) == before - 5_000
    assert space_for(tmp_path / "absent", 10 << 20) == before


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("where", ["open", "prefill"])
def test_an_error_leaves_only_what_can_be_continued(tmp_path, monkeypatch, where, failing):
    broken, calls = task(), itertools.count()
    whole = getattr(broken.model, where)

    def fail(*arguments, **options):
        if next(calls) == failing:
            raise ReadFailed("broken")
        return whole(*arguments, **options)

    monkeypatch.setattr(broken.model, where, fail)
    work = tmp_path / "work"
    with pytest.raises(ReadFailed, match="broken"):
        train(broken, tmp_path / "out", work, SilentProgress())
    # The second opening is for judging, when all layers are trained.
    assert work.exists() == bool(failing)
    if failing:
        kept = "layer-0002" if where == "open" else "group.safetensors"
        assert (work / kept).is_file()


def recording(path, layers, shape, contexts, train_tokens):
    work = WorkDirectory(path, "key")
    return work, GroupRecording(work, layers, shape, Text(contexts, train_tokens))


def test_recording_holds_what_the_decoder_computed(tmp_path):
    stack, contexts = Stack(), random_contexts(20, 30)
    work, group = recording(tmp_path / "work", [0, 1], SHAPE, contexts, 480)
    with work:
        assert next_group(work, [0, 1], SHAPE, 600) == [0, 1]
        with group:
            group.record(stack, SilentProgress())
        for layer in range(2):
            seen = [stack.margins(ids)[layer] for ids in contexts]
            margin = torch.cat([margin for _, margin in seen])
            with group.data(layer) as data:
                inputs, active = data.batch(np.arange(600))
            assert torch.equal(inputs, torch.cat([x for x, _ in seen]).half().float())
            assert torch.equal(active, margin > 0)
            torch.testing.assert_close(group.mean_margin(layer), margin[:480].mean(0))


def test_odd_widths_and_large_values_are_packed_and_unpacked(tmp_path):
    shape = RowShape(3, 13)
    work, group = recording(tmp_path / "work", [0], shape, [[0] * 5], 4)
    values = torch.randn(5, 13, generator=torch.Generator().manual_seed(0))
    large = np.full((5, 3), 1e9, np.float32)

    class Decoder:
        def prefill(self, ids, *, tap):
            tap(0, large, values.numpy())
            tap(1, large, values.numpy())  # of a layer that is not asked for

    with work:
        with group:
            group.record(Decoder(), SilentProgress())
        with group.data(0) as data:
            inputs, active = data.batch(np.arange(5))
        assert torch.equal(active, values > 0)
        assert torch.equal(inputs, torch.full((5, 3), 65504.0))


@pytest.mark.parametrize("in_memory", [True, False])
def test_rows_are_read_by_position(tmp_path, monkeypatch, in_memory):
    monkeypatch.setattr("flashllm.predictors.record.MEMORY_ROWS_BYTES", (1 << 20) * int(in_memory))
    stack, contexts = Stack(), random_contexts(20, 30)
    work, group = recording(tmp_path / "work", [1], SHAPE, contexts, 480)
    with work:
        with group:
            group.record(stack, SilentProgress())
        margin = torch.cat([stack.margins(ids)[1][1] for ids in contexts])
        with group.data(1) as data:
            assert isinstance(data.rows, RowsOnDisk) != in_memory
            part = data.part(range(100, 300)).part(range(50, 150))
            where = np.array([0, 1, 2, 7, 8, 99])
            assert torch.equal(part.batch(where)[1], margin[150 + where] > 0)
            whole = np.concatenate([bits for _, bits in part.chunks()])
            assert torch.equal(unpack_active(whole, D_FFN), margin[150:250] > 0)
            assert sum(len(x) for x in part.sample(3)) == 34


def test_what_is_read_at_once_does_not_grow_with_the_tokens(tmp_path):
    rows, sizes = 5_000, []
    path = tmp_path / "rows"
    np.zeros(rows * SHAPE.row_bytes, np.uint8).tofile(path)

    class Watched(RowsOnDisk):
        def take(self, tokens):
            sizes.append(len(tokens))
            return super().take(tokens)

    data = LayerData(Watched(path, SHAPE.row_bytes), SHAPE, range(rows))
    for _ in data.chunks():
        pass
    for _ in data.sample(2):
        pass
    assert (sum(sizes), max(sizes)) == (rows + rows // 2, 512)


def test_a_recording_that_ends_early_says_so(tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(bytes(10))
    with pytest.raises(ReadFailed, match="ends too early"):
        RowsOnDisk(path, 4).take(np.array([2]))
    with pytest.raises(ReadFailed, match="cannot read"):
        RowsOnDisk(tmp_path / "absent", 4)


def test_contexts_that_cannot_be_judged_are_refused_before_the_work(tmp_path):
    contexts = [*CONTEXTS[:50], *([4] for _ in range(200))]
    singles = task_of(Stack(2, n_layers=N_LAYERS), contexts)
    with pytest.raises(UsageError, match="single tokens"):
        train(singles, tmp_path / "out", tmp_path / "work", SilentProgress())
    assert not (tmp_path / "work").exists()
