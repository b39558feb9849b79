"""Rows on workers of Ray: the answers of one process, whoever is killed; and what is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flashllm.batch.data_parallel import cluster
from flashllm.batch.data_parallel.weightless_model import WeightlessModel
from flashllm.batch.data_parallel.worker import Opened, Opening, RayWorker
from flashllm.batch.data_parallel.workers import RayWorkers, Worker, checked, open_workers
from flashllm.batch.journal import BatchKey
from flashllm.batch.output import FileOutput
from flashllm.batch.row import RowDefaults
from flashllm.batch.row_by_row import RowByRow
from flashllm.batch.run import BatchRun
from flashllm.cli.commands import batch_workers
from flashllm.cli.main import main
from flashllm.engine.process.messages import Failure
from flashllm.errors import EngineLost, ModelNotFound
from flashllm.flash.manifest import manifest_hash
from flashllm.library.open import open_directory
from flashllm.options import DEFAULT_OPTIONS, ModelOptions
from tests.batch.batches import open_rows
from tests.cli.test_batch_command import demo_rows, write

OPENER = "flashllm.library.worker_entry:open_same_model"
DEFAULTS = RowDefaults()
KEY = BatchKey("rows", "model", {})
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="the package ray is not installed (pip install 'flashllm[ray]')",
)


def opening(demo: Path, **changes: Any) -> Opening:
    values = {"path": str(demo), "model_hash": manifest_hash(demo)} | changes
    return Opening(OPENER, options=ModelOptions(memory=800 << 20, context=512), block=3, **values)


def rows_of_the_demo() -> list[dict[str, Any]]:
    rows = [{**row, "id": f"{number}"} for number, row in enumerate(demo_rows() * 2)]
    rows[5]["temperature"] = 0.8
    return [*rows[:7], {"id": "too long", "prompt": "very " * 3000}, *rows[7:]]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, demo: Path) -> tuple[Path, bytes]:
    folder = tmp_path_factory.mktemp("alone")
    rows = write(folder, rows_of_the_demo())
    assert main(["batch", str(rows), str(folder / "answers"), str(demo)]) == 65
    return rows, (folder / "answers").read_bytes()


class Workers:
    """Three of a cluster of this machine, which all tests here share."""

    def __init__(self, ray: Any, demo: Path) -> None:
        self.ray, self.demo = ray, demo
        self.opened = open_workers(ray, 3, opening(demo), lambda: False)
        self.losses: list[str] = []

    def answer(self, rows: Path, out: Path, on_row: Callable[[int, list[Worker]], None]) -> Any:
        """Answers rows into a file; `on_row` gets the rows done, and all workers that are left."""
        left = [worker for worker in self.opened if not worker.lost_why]
        schedule = RayWorkers(self.ray, left, lambda: False, lambda _: None, self.losses.append)
        model = WeightlessModel(self.demo, left[0].opened.plan)
        with open_rows(str(rows)) as given, FileOutput(out, given, KEY) as output:
            done = lambda: on_row(output.order.n_done, left)  # noqa: E731
            run = BatchRun(model, given, DEFAULTS, output, lambda: False, done)
            return run.answer(schedule)


@pytest.fixture(scope="module")
def workers(demo: Path) -> Iterator[Workers]:
    with cluster.connected(cluster.LOCAL) as ray:
        yield Workers(ray, demo)


@needs_ray
@pytest.mark.filterwarnings("ignore")
def test_a_worker_that_is_killed_loses_no_row_and_no_row_is_there_twice(
    workers: Workers, alone: tuple[Path, bytes], tmp_path: Path
) -> None:
    rows, expected = alone
    killed: list[Worker] = []

    def kill_the_one_that_has_most(done: int, left: list[Worker]) -> None:
        if done >= 5 and not killed:
            worker = max(left, key=lambda each: len(each.rows))
            assert worker.rows
            killed.append(worker)
            os.kill(worker.opened.pid, signal.SIGKILL)

    summary = workers.answer(rows, tmp_path / "answers", kill_the_one_that_has_most)
    assert (tmp_path / "answers").read_bytes() == expected
    assert len({worker.opened.pid for worker in workers.opened}) == 3
    assert killed[0].lost_why
    assert workers.losses[0].startswith(killed[0].name)
    assert not killed[0].rows
    assert sum(worker.answered for worker in workers.opened) == 40
    written = [json.loads(line) for line in expected.splitlines()]
    tokens = sum(line["usage"]["completion_tokens"] for line in written if "usage" in line)
    assert summary.costs.completion_tokens == tokens


@needs_ray
@pytest.mark.filterwarnings("ignore")
def test_a_batch_that_lost_all_workers_goes_on_elsewhere(
    workers: Workers, alone: tuple[Path, bytes], demo: Path, tmp_path: Path
) -> None:
    rows, expected = alone
    out = tmp_path / "answers"

    def kill_all(done: int, left: list[Worker]) -> None:
        if done == 6:
            for worker in left:
                os.kill(worker.opened.pid, signal.SIGKILL)

    with pytest.raises(EngineLost, match=r"all workers are lost \(2\), the last one: worker \d"):
        workers.answer(rows, out, kill_all)
    with (
        open_directory(demo, DEFAULT_OPTIONS) as model,
        open_rows(str(rows)) as given,
        FileOutput(out, given, KEY) as output,
    ):
        assert output.order.n_done >= 6
        schedule = RowByRow(model, lambda: False, lambda: None)
        run = BatchRun(model, given, DEFAULTS, output, lambda: False, lambda: None)
        summary = run.answer(schedule)
    assert summary.resumed >= 6
    assert schedule.costs.answers == 40 - (summary.resumed - 1)
    assert out.read_bytes() == expected


def test_a_worker_says_what_its_machine_lacks(demo: Path, tmp_path: Path) -> None:
    before = os.environ.get("OMP_NUM_THREADS")
    try:
        absent = RayWorker(opening(demo, path=str(tmp_path / "none")), 1).open()
        other = RayWorker(opening(demo, model_hash="0" * 64), 1).open()
        opened = RayWorker(opening(demo), 1).open()
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before
    assert isinstance(absent, Failure)
    assert absent.kind == "ModelNotFound"
    assert isinstance(other, Failure)
    assert other.kind == "UsageError"
    assert socket.gethostname() in other.text
    assert manifest_hash(demo)[:12] in other.text
    assert isinstance(opened, Opened)
    assert opened.plan.contexts == 3


def typed(rows: Path, out: Path, demo: Path, *options: str) -> int:
    return main(["batch", str(rows), str(out), str(demo), *options])


def test_clusters_that_are_not_there(
    alone: tuple[Path, bytes],
    demo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows, out = alone[0], tmp_path / "answers"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ray", None)
        assert typed(rows, out, demo, "--ray", "local") == 2
        assert "pip install 'flashllm[ray]'" in capsys.readouterr().err
    assert typed(rows, out, demo, "--ray", "somewhere") == 2
    assert "HOST:PORT" in capsys.readouterr().err
    assert typed(rows, out, demo, "--workers", "3") == 2
    assert "--ray" in capsys.readouterr().err
    assert not out.exists()
    if importlib.util.find_spec("ray") is None:
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    assert typed(rows, out, demo, "--ray", address) == 70
    assert f"no Ray cluster answers at {address}" in capsys.readouterr().err


def test_names_go_to_workers_as_names_and_paths_as_paths() -> None:
    assert batch_workers.path_for_workers(None, Path("/x/demo")) is None
    assert batch_workers.path_for_workers("big", Path("/x/big")) == "big"
    assert batch_workers.path_for_workers("./big", Path("/x/big")) == "/x/big"


def test_errors_of_workers_keep_their_class() -> None:
    with pytest.raises(ModelNotFound, match="worker 1 of 2: no"):
        checked(Failure("ModelNotFound", "no"), "worker 1 of 2")
