"""Stages of a pipeline: the bits of one process, its share of memory, and what fails."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from flashllm.convert import convert

from flashllm.batch.block import RowsInBlock
from flashllm.batch.journal import BatchKey
from flashllm.batch.output import FileOutput
from flashllm.batch.row import RowDefaults
from flashllm.batch.run import BatchRun
from flashllm.cli.main import main
from flashllm.engine.local import Model, Sampling, open_model
from flashllm.engine.pipeline.opening import open_pipeline
from flashllm.engine.pipeline.stages import stage_layers
from flashllm.errors import ChecksumMismatch, EngineLost, ModelError, UsageError
from flashllm.flash.manifest import read_manifest
from flashllm.flash.store import Store
from flashllm.kv_cache.layout import score_bytes
from flashllm.options import ModelOptions
from tests.batch.batches import open_rows
from tests.cli.test_batch_command import demo_rows, write
from tests.machines.queue_link import in_threads
from tests.support.smallthinker import SmallThinker
from tests.support.tiny import sparse_opt, tiny, tiny_opt

OPTIONS = ModelOptions(memory=1 << 30, context=96, contexts=4)


def experts_behind_a_dense_layer() -> Any:
    sizes = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 19}
    more = {"intermediate_size": 45, "num_key_value_heads": 2, "head_dim": 12}
    return tiny("glm4_moe", **sizes, **more, num_hidden_layers=5)


def windows_on_some_layers() -> Any:
    layouts = {"rope_layout": [1, 0, 1, 1], "sliding_window_layout": [0, 0, 1, 0]}
    return SmallThinker(num_hidden_layers=4, **layouts)


MODELS: dict[str, Callable[[], Any]] = {
    "tied head, learned positions": sparse_opt,
    "another width of the embedding": lambda: tiny_opt(
        num_hidden_layers=3,
        word_embed_proj_dim=16,
        do_layer_norm_before=False,
        max_position_embeddings=160,
    ),
    "resident gate": lambda: tiny(
        "llama", intermediate_size=75, num_hidden_layers=3, hidden_act="relu"
    ),
    "experts behind a dense layer": experts_behind_a_dense_layer,
    "router of the block, windows, layers without positions": windows_on_some_layers,
    "neurons that are never zero": lambda: tiny("llama", intermediate_size=45, num_hidden_layers=3),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A model of each kind, converted when it is asked for."""
    folder = tmp_path_factory.mktemp("models")

    def converted(name: str) -> Path:
        where = folder / name.replace(" ", "-")
        if not where.exists():
            model = MODELS[name]()
            source = folder / f"source of {name}"
            save = getattr(model, "save_pretrained", None) or model.save
            save(source)
            convert(source, where)
        return where

    return converted


def answers(model: Model) -> list[list[int]]:
    """Of prompts one by one, then of several at once, which take steps together."""
    prompts = [[1 + (7 * at + start) % 90 for at in range(n)] for start, n in enumerate((1, 70, 9))]
    found = []
    for number, prompt in enumerate(prompts):
        sampling = Sampling(temperature=0.9, seed=5) if number == 1 else None
        generation = model.generate(prompt, max_tokens=7, sampling=sampling)
        found.append([token.id for token in generation])
    contexts = [model.new_context() for _ in range(3)]
    prompts[2] = [*prompts[1][:40], 3, 4]
    several = [
        model.generate(prompt, max_tokens=5, context=context)
        for prompt, context in zip(prompts, contexts, strict=True)
    ]
    first, *others = several
    first.first_of_each(others)
    for _ in range(4):
        first.next_of_each(others)
    return found + [generation.ids for generation in several]


@pytest.mark.parametrize("name", MODELS)
def test_stages_give_the_bits_of_one_process(models: Callable[[str], Path], name: str) -> None:
    directory = models(name)
    with open_model(directory, OPTIONS) as model:
        expected = answers(model)
    for stages in (2, 3):
        with in_threads(directory, OPTIONS, stages) as opened:
            assert answers(opened.model) == expected


def test_each_stage_holds_its_share(models: Callable[[str], Path]) -> None:
    directory = models("experts behind a dense layer")
    with open_model(directory, OPTIONS) as model:
        whole = model.plan.split
        resident = model.decoder.plan.resident_bytes
    with in_threads(directory, OPTIONS, 3) as opened:
        plans = [opened.model.plan, *(decoder.plan for decoder in opened.followers)]
        scores = score_bytes(model.info.spec, 96)
        assert sum(plan.split["kv"] - scores for plan in plans) == whole["kv"] - scores
        spans = 3 * 4096  # each begins as far from a page as in the file
        assert sum(plan.resident_bytes for plan in plans) <= resident + 3 * spans
        assert max(plan.resident_bytes for plan in plans) < 0.8 * resident
        slots = [len(plan.slots_per_layer) for plan in plans]
        assert slots == [1, 1, 2]
        counts = [decoder.spec.n_layers for decoder in opened.followers]
        assert [opened.model.info.spec.n_layers, *counts] == [2, 1, 2]


def test_layers_are_shared_out_evenly(demo: Path) -> None:
    spec = read_manifest(demo).spec
    assert spec.n_layers == 5
    assert stage_layers(spec, 2) == [range(2), range(2, 5)]
    assert stage_layers(spec, 3) == [range(1), range(1, 3), range(3, 5)]
    assert [len(layers) for layers in stage_layers(spec, 5)] == [1] * 5
    for count in (1, 6):
        with pytest.raises(UsageError, match="2 to 5 stages"):
            stage_layers(spec, count)


def test_an_error_of_any_stage_ends_a_call_and_nothing_else(models: Callable[[str], Path]) -> None:
    directory = models("tied head, learned positions")
    with open_model(directory, OPTIONS) as model:
        expected = answers(model)
    with in_threads(directory, OPTIONS, 3) as opened:
        model = opened.model
        for rank, name, kind in (
            (0, "send", ModelError),
            (1, "receive", ModelError),
            (1, "send", ModelError),
            (2, "receive", ModelError),
            (2, "reply", ModelError),
        ):
            link = opened.links[rank]
            setattr(link, name, failing(getattr(link, name), kind))
            with pytest.raises(kind, match="here"):
                for _ in model.generate(list(range(1, 80)), max_tokens=9):
                    pass
            delattr(link, name)
        assert answers(model) == expected


def failing(real: Callable[..., Any], kind: type[Exception]) -> Callable[..., Any]:
    """The same, which fails at its second call."""
    calls = itertools.count()

    def fails(*arguments: Any) -> Any:
        if next(calls) == 1:
            raise kind("here")
        return real(*arguments)

    return fails


def test_a_stage_that_has_another_model_is_refused(
    models: Callable[[str], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one, other = models("tied head, learned positions"), models("resident gate")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    rows = write(tmp_path, [{"prompt": [1, 2, 3]}])
    command = ["batch", str(rows), str(tmp_path / "out")]
    flags = ["--stages", "2", "--rendezvous", address, "--ctx-size", "96"]
    with started("-m", "flashllm", *command, str(other), *flags, "--stage", "1") as process:
        assert main([*command, str(one), *flags, "--stage", "0"]) == 2
        err = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    for text in (capfd.readouterr().err, err):
        assert "another one than at the first stage" in text
    # The same command with the same model, on what could be two machines.
    with started("-m", "flashllm", *command, str(one), *flags, "--stage", "1") as process:
        assert main([*command, str(one), *flags, "--stage", "0"]) == 0
        err = process.communicate(timeout=60)[1]
    assert process.returncode == 0
    assert "stage 1 of 2: the batch has ended" in err
    assert main([*command[:2], str(tmp_path / "alone"), str(one), "--ctx-size", "96"]) == 0
    assert (tmp_path / "out").read_bytes() == (tmp_path / "alone").read_bytes()


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, *arguments], stderr=subprocess.PIPE, text=True)


def other_stages() -> list[psutil.Process]:
    """Processes of stages, without those that have ended: an earlier test may have left one."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "flashllm.engine.pipeline.following" in child.cmdline():
                found.append(child)
    return found


def test_a_stage_that_dies_ends_the_batch_which_can_go_on(demo: Path, tmp_path: Path) -> None:
    rows = write(tmp_path, demo_rows())
    assert main(["batch", str(rows), str(tmp_path / "alone"), str(demo)]) == 0
    out, key = tmp_path / "answers", BatchKey("rows", "model", {})
    pids: list[int] = []

    def kill_the_other() -> None:
        if not pids:
            for child in other_stages():
                pids.append(child.pid)
                os.kill(child.pid, signal.SIGKILL)

    def answer(model: Model, on_row: Callable[[], None]) -> None:
        with open_rows(str(rows)) as given, FileOutput(out, given, key) as output:
            schedule = RowsInBlock(model, lambda: False, lambda: None)
            run = BatchRun(model, given, RowDefaults(), output, lambda: False, on_row)
            run.answer(schedule)

    options = ModelOptions(memory=1 << 30, context=512, contexts=4)
    with (
        pytest.raises(EngineLost, match=r"stage 1 of 2 has ended"),
        open_pipeline(demo, options, 2) as model,
    ):
        answer(model, kill_the_other)
    assert len(pids) == 1
    assert (tmp_path / "answers.partial").exists()
    with open_pipeline(demo, options, 3) as model:
        answer(model, lambda: None)
    assert out.read_bytes() == (tmp_path / "alone").read_bytes()
    assert not other_stages()


def test_damage_is_found_by_the_stage_that_reads_it(
    models: Callable[[str], Path], tmp_path: Path
) -> None:
    directory = tmp_path / "damaged"
    shutil.copytree(models("tied head, learned positions"), directory)
    path = directory / "resident.safetensors"
    raw = bytearray(path.read_bytes())
    with Store(directory) as store:
        record = store.resident_index()["layers.2.attn.q.weight"]
    raw[record.offset + 1] ^= 1
    path.write_bytes(raw)
    with Store(directory, layers=range(2)) as store:
        assert "layers.2.attn.q.weight" not in store.load_resident(direct=False)
    with (
        Store(directory, layers=range(2, 3)) as store,
        pytest.raises(ChecksumMismatch, match=r"layers\.2\.attn\.q\.weight"),
    ):
        store.load_resident(direct=False)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--stages", "1"], "2 stages or more"),
        (["--stages", "9"], "2 to 5 stages"),
        (["--stage", "1"], "--stages"),
        (["--stages", "2", "--stage", "1"], "--rendezvous"),
        (["--stages", "2", "--stage", "2", "--rendezvous", "localhost:9"], "0 to 1"),
        (["--stages", "2", "--rendezvous", "localhost"], "HOST:PORT"),
        (["--stages", "2", "--ray", "local"], "--ray"),
        (["--stages", "2", "--block", "auto"], "--block"),
        (["--stages", "2", "--kv-policy", "h2o"], "--kv-policy"),
    ],
)
def test_flags_that_do_not_go_together(
    demo: Path,
    tmp_path: Path,
    flags: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = write(tmp_path, demo_rows()[:1])
    assert main(["batch", str(rows), str(tmp_path / "out"), str(demo), *flags]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
