"""`flashllm pull` and `flashllm models`: what they print, where, and what mistakes lead to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from flashllm.convert import verify
from flashllm.convert.families.known_shapes import KNOWN

from flashllm.cli.main import main
from flashllm.flash.manifest import read_manifest
from flashllm.hardware import machine_profile
from flashllm.hardware.device import describe_device, machine_name
from flashllm.library import runtime_memory
from flashllm.units import GIB, MIB
from tests.library.test_download import use_hub
from tests.support.checkpoints import write_checkpoint
from tests.support.hub_server import HubServer, Served, serving
from tests.support.json_page import read_page
from tests.support.profiles import law

ROOT = Path(__file__).parents[2]
NAME = "org/tiny"
SIZES = {"hidden_size": 96, "word_embed_proj_dim": 96, "ffn_dim": 512}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user of its own, whose processes take 200 MiB, in an empty directory."""
    for name in [name for name in os.environ if name.startswith("FLASHLLM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    runtime_memory._keep(200 * MIB)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


@pytest.fixture
def server(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with serving() as running:
        running.add(NAME, write_checkpoint(home / "source", shards=3, dtype=np.float16, **SIZES))
        use_hub(monkeypatch, running, home)
        yield running
        huggingface_hub.close_session()


def test_the_plan_comes_first_and_alone(
    server: HubServer, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", NAME, "--dry-run"]) == 0
    shown = capsys.readouterr()
    rows = dict(line.split("  ", 1) for line in shown.out.splitlines())
    assert list(rows) == [
        "repository", "model", "to fetch", "memory", "speed", "converted", "predictors",
    ]  # fmt: skip
    assert "org/tiny, main (0123456)" in rows["repository"]
    assert "2 layers of 512 neurons, relu, in f16" in rows["model"]
    assert "in 6 files" in rows["to fetch"]
    assert "it fits into the" in rows["memory"]
    assert "bench io" in rows["speed"]
    assert "converting takes about 1 s" in rows["converted"]
    assert shown.err == ""
    assert not (home / "hub").exists()
    assert not any("/cdn/" in one.path for one in server.requests)


def test_the_plan_for_programs(server: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", NAME, "--dry-run", "--json", "--dtype", "int8", "--memory", "8GiB"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["repository"], told["precision"], told["fits"]) == (NAME, "int8", True)
    assert told["ceiling_bytes"] == 8 * GIB
    assert told["fetch_bytes"] == sum(
        len(content) for content in server.repositories[NAME].files.values()
    )


def test_what_a_profile_of_this_disk_adds(
    server: HubServer, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = machine_profile.save(law(100e-6, 2e9), home / "profile.json")
    assert main(["pull", NAME, "--dry-run", "--profile", str(file)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("speed")]
    assert "tokens/s (" in line
    assert "s a token) in" in line
    assert "assumed: " in line


def test_fetched_into_the_cache(
    server: HubServer, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", NAME]) == 0
    shown = capsys.readouterr()
    path = Path(shown.out.strip())
    assert path.parent.parent == home / "hub" / "models--org--tiny"
    assert "fetching org/tiny: 100 %" in shown.err
    assert shown.err.splitlines()[-1] == (
        "flashllm: next: flashllm convert org/tiny tiny.flash --predictors train --calibration TEXT"
    )
    assert main(["pull", NAME, "--json", "--progress", "none"]) == 0
    again = capsys.readouterr()
    assert json.loads(again.out)["path"] == str(path)
    assert again.err == ""
    assert main(["pull", NAME, "--dry-run"]) == 0
    assert "all of them here already" in capsys.readouterr().out
    assert main(["ls", "--checkpoints"]) == 0
    assert "org/tiny    main (0123456)" in capsys.readouterr().out


def test_converted_on_the_way(
    server: HubServer, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", f"https://huggingface.co/{NAME}", "--convert", "--dtype", "int8"]) == 0
    shown = capsys.readouterr()
    place = home / "home" / "models" / "tiny.flash"
    assert shown.out == f"{place}\n"
    assert verify(place).ok
    assert read_manifest(place).spec.dtype == "int8"
    assert not (home / "hub").exists()
    assert "at once, while it is fetched" in shown.err
    assert "predictors  none: every neuron is read; --keep-source --predictors train" in shown.err
    assert "fetching and converting: 100 %" in shown.err
    assert shown.err.splitlines()[-1] == "flashllm: next: flashllm chat tiny"
    assert main(["pull", NAME, "--convert"]) == 73
    assert f"flashllm chat {place}" in capsys.readouterr().err
    assert main(["pull", NAME, "--convert", "two.flash", "--json", "--progress", "none"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["converted"] == "two.flash"
    assert verify(Path("two.flash")).ok


def test_the_source_may_be_kept(
    server: HubServer, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", NAME, "--convert", "one.flash", "--keep-source"]) == 0
    assert "beside the source" in capsys.readouterr().err
    assert list((home / "hub").rglob("*.safetensors"))
    server.requests.clear()
    assert main(["pull", NAME, "--convert", "two.flash"]) == 0
    assert not any("/cdn/" in one.path for one in server.requests)
    one, two = (Path(name) / "ffn.bundles" for name in ("one.flash", "two.flash"))
    assert one.read_bytes() == two.read_bytes()


def test_events_for_programs(server: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", NAME, "--convert", "x.flash", "--progress", "jsonl", "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    phases = {event["phase"]: event for event in events if event["event"] == "phase"}
    assert list(phases) == ["fetching and converting", "checksums of the model"]
    assert all(event["done_bytes"] == event["total_bytes"] for event in phases.values())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "flashllm pull ORG/NAME --convert"),
        (["--convert", NAME], 2, "Its name comes first"),
        (["tiny"], 2, "expected ORG/NAME"),
        (["qwen3-9b"], 2, "did you mean qwen3-8b or"),
        (["."], 2, "is a directory here; convert it: flashllm convert . DST"),
        (["org/na me"], 2, "is no name of a repository"),
        ([f"{NAME}@"], 2, "no revision follows the @"),
        (["org/nothing"], 66, "no such repository, or it is private"),
        ([f"{NAME}@v9"], 66, "no branch, tag or commit v9"),
        ([NAME, "--predictors", "train"], 2, "--predictors: belongs to a conversion; add --conv"),
        ([NAME, "--keep-source"], 2, "--keep-source: belongs to a conversion"),
        ([NAME, "--convert", "x", "--predictors", "train"], 2, "add --keep-source"),
        ([NAME, "--convert", "x", "--order", "coactivation"], 2, "add --keep-source"),
        ([NAME, "--convert", "no/such/place"], 73, "no such directory; create it first"),
        ([NAME, "--dtype", "int3"], 2, "'int3' is unknown; did you mean int8?"),
        ([NAME, "--act", "mish"], 2, "--act is 'mish'"),
    ],
)
def test_mistakes_lead_on(
    server: HubServer,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    assert main(["pull", *arguments]) == code
    message = capsys.readouterr().err
    assert words in message
    assert "Traceback" not in message
    assert not (home / "hub").exists()
    assert list(Path().iterdir()) == []


def test_a_directory_of_the_name_of_a_repository(
    server: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(NAME).mkdir(parents=True)
    assert main(["pull", NAME, "--dry-run"]) == 2
    assert "is a directory here" in capsys.readouterr().err
    assert main(["pull", f"hf.co/{NAME}", "--dry-run"]) == 0


def test_a_known_name_is_that_of_its_repository(
    server: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.repositories["facebook/opt-125m"] = server.repositories[NAME]
    assert main(["pull", "OPT-125M", "--dry-run"]) == 0
    assert "facebook/opt-125m" in capsys.readouterr().out
    assert main(["pull", "opt-175b"]) == 2  # a shape that was never uploaded
    assert "expected ORG/NAME" in capsys.readouterr().err


def test_a_gated_model(server: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.repositories[NAME].gated = True
    assert main(["pull", NAME]) == 77
    message = capsys.readouterr().err
    assert f"Accept its licence at {server.address}/{NAME}, then set HF_TOKEN" in message
    assert "settings/tokens" in message


def test_no_network(
    server: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", NAME, "--progress", "none"]) == 0
    path = capsys.readouterr().out.strip()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert main(["pull", NAME]) == 69
    message = capsys.readouterr().err
    assert "Check the connection" in message
    assert message.rstrip().endswith(f"A copy of it is here: {path}")
    assert main(["pull", "org/other"]) == 69
    assert "A copy" not in capsys.readouterr().err


def test_offline_is_honoured_and_said(
    server: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", NAME, "--progress", "none"]) == 0
    path = capsys.readouterr().out.strip()
    server.requests.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["pull", NAME]) == 0
    shown = capsys.readouterr()
    assert shown.out.strip() == path
    assert "HF_HUB_OFFLINE is set, so nothing is fetched" in shown.err
    assert main(["pull", NAME, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"schema": 1, "repository": NAME, "revision": "main", "path": path}
    page = read_page()
    page.check("pull --json", told)
    assert page.problems == []
    assert main(["pull", NAME, "--convert"]) == 2
    assert f"flashllm convert {path} DST" in capsys.readouterr().err
    assert main(["pull", "org/other"]) == 69
    assert "unset HF_HUB_OFFLINE to go on" in capsys.readouterr().err
    assert server.requests == []


def test_weights_that_cannot_be_read(server: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.repositories["org/gguf"] = Served(
        {"\x1b]0;x\x07.gguf": b"x"}, tags=(f"base_model:quantized:{NAME}",)
    )
    assert main(["pull", "org/gguf"]) == 65
    message = capsys.readouterr().err
    assert f"flashllm pull {NAME}" in message
    assert "\x1b" not in message


PULL = [sys.executable, "-m", "flashllm", "pull", NAME, "--progress", "plain"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "words", "converts"),
    [
        (signal.SIGINT, 75, "Run the same command to go on", False),
        (signal.SIGTERM, 75, "Run the same command to go on", True),
        (signal.SIGKILL, -9, "", False),
        (signal.SIGKILL, -9, "", True),
    ],
)
def test_a_process_that_is_ended_goes_on(
    server: HubServer, home: Path, number: signal.Signals, code: int, words: str, converts: bool
) -> None:
    files = server.repositories[NAME].files
    last = "model-00003-of-00003.safetensors"
    reached, released = threading.Event(), threading.Event()
    asked = [0]

    def hold(name: str) -> None:
        """Keeps the last file back; of a conversion not its header, which comes first of all."""
        if name == last:
            asked[0] += 1
            if asked[0] > converts:
                reached.set()
                released.wait(60)

    server.faults.before = hold
    command = [*PULL, *(["--convert", "x.flash"] if converts else [])]
    environment = os.environ | {"HF_HOME": str(home), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert reached.wait(60), process.communicate(timeout=10)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    released.set()
    assert process.returncode == code
    assert words in stderr
    assert "Traceback" not in stderr
    finished = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert finished.returncode == 0, finished.stderr
    if converts:
        assert verify(Path("x.flash")).ok
        assert not Path("x.flash.partial-pull").exists()
    else:
        path = Path(finished.stdout.strip())
        for name in files:
            assert (path / name).read_bytes() == files[name]


# `flashllm models`


def test_models_that_run_well(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    shown = capsys.readouterr()
    head, *lines = shown.out.splitlines()
    assert head.split() == [
        "name", "family", "sparse", "by", "precision", "needs", "disk", "tok/s",
    ]  # fmt: skip
    assert [line.split()[0] for line in lines] == [
        name for name, model in KNOWN.items() if model.listed
    ]
    assert max(map(len, [head, *lines])) <= 100
    (line,) = [line for line in lines if line.startswith("opt-6.7b ")]
    assert "predictors (lossy)" in line
    assert line.endswith(" -")
    assert "bench io" in shown.err
    assert "with a licence to accept first" in shown.err
    assert main(["models", "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(KNOWN)


def test_models_are_planned_for_this_machine(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = law(100e-6, 2e9)
    import dataclasses

    place = dataclasses.replace(
        profile, device=describe_device(Path()), machine_name=machine_name()
    )
    machine_profile.save(place)

    def found(*arguments: str) -> dict[str, dict[str, object]]:
        assert main(["models", "--json", *arguments]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return {row["name"]: row for row in rows}

    usual = found("--memory", "12GiB")
    small = found("--memory", "12GiB", "--dtype", "int4")
    for name, row in usual.items():
        less = small[name]
        assert less["precision"] == "int4"
        assert less["disk_bytes"] < row["disk_bytes"]  # type: ignore[operator]
        assert less["smallest_ceiling_bytes"] < row["smallest_ceiling_bytes"]  # type: ignore[operator]
        fits = row["smallest_ceiling_bytes"] <= 12 * GIB  # type: ignore[operator]
        assert (row["tokens_per_second"] is not None) == fits
    # What `plan` says of the same shape in the same memory.
    assert main(["plan", "opt-6.7b", "--memory", "12GiB", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    speed = usual["opt-6.7b"]["tokens_per_second"]
    assert isinstance(speed, float)
    assert 1 / speed == pytest.approx(planned["expected"]["token"]["total"], rel=0.05)
    assert main(["models", "--memory", "12GiB"]) == 0
    shown = capsys.readouterr()
    assert "tok/s: expected in 12.0 GiB" in shown.err
    assert "may fit in fewer bits" in shown.err
    (line,) = [line for line in shown.out.splitlines() if line.startswith("opt-6.7b ")]
    assert line.split()[-1].startswith("~")


def test_plan_knows_them_by_name_and_repository(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("qwen3-8b", "Qwen/Qwen3-8B", "llama3-8b", "mistral-7b", "phi-4"):
        assert main(["plan", name]) == 0
        assert "smallest ceiling" in capsys.readouterr().out
    assert main(["plan", "Qwen/Qwen9-8B"]) == 66
    assert "flashllm pull Qwen/Qwen9-8B" in capsys.readouterr().err
