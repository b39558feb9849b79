"""`flashllm plan`: from a config.json alone, and from a converted model."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from flashllm.convert import convert

from flashllm.cli.main import main
from flashllm.hardware.device import describe_device, machine_name
from flashllm.hardware.machine_profile import save
from tests.support.profiles import RATES, law
from tests.support.tiny import save_exact_predictors, save_opt, sparse_opt

DENSE = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FLASHLLM_")]:
        monkeypatch.delenv(name)
    # No profile that is kept on this machine.
    monkeypatch.setenv("FLASHLLM_HOME", os.devnull)


def checkpoint(tmp_path: Path, **changes: object) -> Path:
    """A directory with nothing but a config.json."""
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(DENSE | changes))
    return directory


def test_encodings_are_planned_with(capsys: pytest.CaptureFixture[str]) -> None:
    """OPT-6.7B: 32 layers of 16384 neurons, two rows of 4096; nothing lost to padding."""
    planned = ["plan", "opt-6.7b", "--json", "--dtype"]
    found = {}
    for words in (["f16"], ["int8"], ["int4", "--resident-dtype", "int8"]):
        assert main([*planned, *words]) == 0
        found[words[0]] = json.loads(capsys.readouterr().out)
    assert [found[dtype]["stride_bytes"] for dtype in found] == [16384, 8704, 4608]
    weights = {dtype: values["weights_bytes"] for dtype, values in found.items()}
    assert weights["int8"]["ffn"] == 32 * 16384 * 2 * 4352
    assert weights["int4"]["ffn"] == 32 * 16384 * 2 * 2304
    assert {dtype: values["padding"] for dtype, values in weights.items()} == dict.fromkeys(
        found, 0
    )
    # Of four square projections a layer, and the embeddings; positions stay in f16.
    projections = 32 * 4 * 4096
    for dtype in ("int8", "int4"):
        assert weights["f16"]["attention"] - weights[dtype]["attention"] == projections * 3840
        saved = weights["f16"]["embeddings"] - weights[dtype]["embeddings"]
        assert saved == 50272 * 3840
    assert main([*planned[:2], "--dtype", "int4", "--resident-dtype", "int8"]) == 0
    assert "in int4, resident ones int8" in capsys.readouterr().out


def test_a_dense_model_is_said_to_be_slow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = checkpoint(tmp_path)
    assert main(["plan", str(source), "--memory", "8GiB", "-c", "2048"]) == 0
    shown = capsys.readouterr().out
    assert "silu is never zero" in shown
    assert "s a token on a disk that reads 1 GB/s" in shown.replace("\n", " ")
    assert list(source.iterdir()) == [source / "config.json"]


def test_the_sums_of_a_dense_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(checkpoint(tmp_path)), "--memory", "8GiB", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["weights_bytes"]["total"] == pytest.approx(8.03e9 * 2, rel=0.005)
    assert told["weights_bytes"]["ffn"] == 32 * 14336 * 3 * 4096 * 2
    assert (told["plan"]["select"], told["plan"]["lossy"]) == ("all", False)
    moved = told["flash_bytes_a_token"]
    assert moved["pinned_bytes"] == told["plan"]["split"]["slots"] > 0
    assert sum(told["plan"]["split"].values()) <= 8 << 30


@pytest.mark.parametrize(
    ("arguments", "select", "lossy"),
    [(["--act", "relu"], "gate", False), (["--act", "relu", "--select", "all"], "all", False)],
)
def test_the_activation_may_be_given(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    select: str,
    lossy: bool,
) -> None:
    assert main(["plan", str(checkpoint(tmp_path)), "--json", *arguments]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["sparse"], told["plan"]["select"], told["plan"]["lossy"]) == (True, select, lossy)
    assert told["weights_bytes"]["gate"] == 32 * 14336 * 4096 * 2


def test_without_a_ceiling_it_is_the_smallest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = checkpoint(tmp_path)
    assert main(["plan", str(source)]) == 0
    assert "This is the smallest ceiling" in capsys.readouterr().out
    assert main(["plan", str(source), "--memory", "1GiB"]) == 71
    assert "the smallest that works here is" in capsys.readouterr().err


def test_a_converted_model(sparse_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(sparse_model), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["plan"]["select"], told["plan"]["lossy"]) == ("predicted", True)
    assert main(["plan", str(sparse_model)]) == 0
    assert "lossy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "code", "named"),
    [
        ({"model_type": "unheard-of"}, 65, "unheard-of"),
        ({"hidden_act": "mish"}, 65, "mish"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 65, "dynamic"),
        ({"num_key_value_heads": 5}, 65, "num_key_value_heads"),
    ],
)
def test_what_cannot_be_planned_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, object],
    code: int,
    named: str,
) -> None:
    assert main(["plan", str(checkpoint(tmp_path, **changes))]) == code
    message = capsys.readouterr().err
    assert named in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("changes", "select", "named"),
    [
        ({"hidden_act": "relu"}, "everything", "expected one of"),
        ({"hidden_act": "relu"}, "predicted", "use --select gate"),
        ({}, "gate", "never zero"),
        ({"model_type": "arcee", "hidden_act": "relu2"}, "gate", "no resident gate"),
    ],
)
def test_a_selector_that_the_model_cannot_have(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, object],
    select: str,
    named: str,
) -> None:
    assert main(["plan", str(checkpoint(tmp_path, **changes)), "--select", select]) == 2
    assert named in capsys.readouterr().err


def test_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(tmp_path / "none")]) == 66
    assert main(["plan", str(tmp_path)]) == 65
    assert "config.json" in capsys.readouterr().err


def test_a_name_that_cannot_be_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "x" * 300]) == 66
    assert main(["plan", "x" * 300 + "/y"]) == 66
    assert "Traceback" not in capsys.readouterr().err


def test_a_converted_model_is_what_it_is(
    sparse_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(sparse_model), "--dtype", "bf16"]) == 2
    assert "converted already" in capsys.readouterr().err


def test_the_text_fits_a_terminal(
    tmp_path: Path, sparse_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ([str(checkpoint(tmp_path))], [str(sparse_model)]):
        assert main(["plan", *arguments]) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["plan", "--json", *arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A file with a profile of another device than that of these tests."""
    return save(law(100e-6, 2e9), tmp_path / "profile.json")


def test_a_built_in_shape(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "opt-30b", "--memory", "40GiB")
    assert found["weights_bytes"]["total"] == pytest.approx(29.97e9 * 2, rel=0.002)
    assert found["plan"]["select"] == "predicted"
    assert found["expected"]["token"] is None
    assert found["expected"]["assumed"].startswith("9.6%")
    assert main(["plan", "opt-30b", "--memory", "40GiB"]) == 0
    shown = capsys.readouterr().out
    assert "Assumed: 9.6% of the neurons" in shown
    assert "flashllm bench io" in shown.replace("\n", " ")


def test_what_the_first_tokens_of_a_mixture_read_is_told_where_it_is_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["qwen3-30b-a3b", "--dtype", "int4", "--memory"]
    few, many = (told(capsys, *words, memory) for memory in ("6GiB", "12GiB"))
    assert few["first_tokens"]["bytes_read"] < 1.1 * few["expected"]["traffic"]["bytes_read"]
    first, later = many["first_tokens"], many["expected"]
    assert first["tokens"] == 128
    assert first["bytes_read"] > 2 * later["traffic"]["bytes_read"]
    assert first["hit_rate"] < later["hit_rate"]
    assert first["seconds"] is None
    for memory, is_told in (("6GiB", False), ("12GiB", True)):
        assert main(["plan", *words, memory]) == 0
        assert ("first 128 tokens" in capsys.readouterr().out) is is_told
    assert told(capsys, "qwen3-8b", "--memory", "12GiB")["first_tokens"] is None


def test_a_directory_goes_before_a_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(tmp_path).rename(tmp_path / "opt-30b")
    monkeypatch.chdir(tmp_path)
    assert told(capsys, "opt-30b")["spec"]["vocab_size"] == DENSE["vocab_size"]


def test_an_unknown_shape_is_told_with_those_near(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "opt-31b"]) == 66
    message = capsys.readouterr().err
    assert "opt-30b" in message
    assert "flashllm ls" in message


def test_a_profile_gives_seconds_bound_and_advice(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("opt-6.7b", "--memory", "8GiB", "--profile", str(profile))
    found = told(capsys, *arguments)
    token = found["expected"]["token"]
    overlap = token["flash"] + token["dram"] + token["overhead"] - token["total"]
    assert found["expected"]["overlap"] == pytest.approx(overlap)
    assert overlap > 0
    assert found["expected"]["guesses"] == {"recall": 0.95, "precision": 0.95}
    assert found["expected"]["bound"] == max(("flash", "dram", "overhead"), key=token.get)
    assert found["expected"]["first_token_seconds"] > token["total"]
    assert found["expected"]["prompt_tokens"] == 128
    assert (found["plan"]["io_threads"], found["plan"]["gap_bytes"]) == (32, 6144)
    assert found["ceilings"]["smallest"] < found["ceilings"]["cliff"] < found["ceilings"]["whole"]
    assert found["advice"][0]["token_seconds"] < token["total"]
    assert found["profile"]["device"]["name"] == "a device of the tests"
    assert main(["plan", *arguments]) == 0
    shown = capsys.readouterr()
    assert "first token" in shown.out
    assert "at once" in shown.out
    assert "Also assumed: 95% of what a token reads is guessed early" in shown.out
    assert "a disk twice as fast" not in shown.out, "memory is what a token waits for"
    assert "was measured of a device of the tests" in shown.err
    assert max(map(len, shown.out.splitlines())) <= 80
    none = told(capsys, *arguments, "--overlap", "none")["expected"]
    assert none["guesses"] is None
    assert none["overlap"] == pytest.approx(0, abs=1e-12)
    assert main(["plan", *arguments, "--overlap", "none"]) == 0
    shown = capsys.readouterr()
    assert "at once" not in shown.out
    assert "a disk twice as fast" in shown.out


def test_a_profile_without_the_rates_tells_no_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = dataclasses.replace(RATES, rows_bytes_per_second={})
    file = save(dataclasses.replace(law(100e-6, 2e9), rates=rates), tmp_path / "profile.json")
    assert main(["plan", "opt-6.7b", "--memory", "8GiB", "--profile", str(file)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "not enough of this machine, so there are no seconds" in shown


def test_the_oracle_is_said_to_read_every_neuron(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "opt-6.7b", "--memory", "8GiB", "--select", "oracle"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "A token reads every neuron" in shown
    assert "the window does not hold" not in shown


def test_more_active_neurons_cost_more(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("opt-6.7b", "--memory", "8GiB", "--profile", str(profile))
    few = told(capsys, *arguments, "--active", "5%")["expected"]
    many = told(capsys, *arguments, "--active", "0.3")["expected"]
    assert few["traffic"]["used"] == pytest.approx(0.05 * 32 * 16384)
    assert many["token"]["total"] > 1.5 * few["token"]["total"]
    assert "30.0%" in many["assumed"]


def test_below_the_cliff_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    least = told(capsys, "opt-6.7b")["ceilings"]["smallest"]
    assert main(["plan", "opt-6.7b", "--memory", str(least + (16 << 20))]) == 0
    assert "below the cliff" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "JSON"),
        ("{}", "no profile of version 1"),
        ('{"version": 2}', "no profile of version 1"),
        ('{"version": 1, "points": []}', "the key 'date' is missing"),
    ],
)
def test_a_damaged_profile_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, named: str
) -> None:
    file = tmp_path / "damaged.json"
    file.write_text(content)
    assert main(["plan", "opt-6.7b", "--profile", str(file)]) == 2
    message = capsys.readouterr().err
    assert str(file) in message
    assert named in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    "arguments",
    [
        ["--active", "0"],
        ["--active", "1.5"],
        ["--active", "x"],
        ["--select", "all", "--active", "0.1"],
    ],
    ids=" ".join,
)
def test_a_share_that_makes_no_sense(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "opt-6.7b", *arguments]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_the_profile_of_this_device_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    here = dataclasses.replace(
        law(100e-6, 2e9, 1, 8), device=describe_device(Path()), machine_name=machine_name()
    )
    save(here)
    found = told(capsys, "opt-6.7b", "--memory", "8GiB")
    assert found["plan"]["io_threads"] == 8
    assert found["expected"]["token"] is not None
    without = told(capsys, "opt-6.7b", "--memory", "8GiB", "--no-direct")
    assert without["expected"]["token"] is None


def test_a_profile_of_another_processor_is_said_and_gives_no_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    save(dataclasses.replace(law(100e-6, 2e9, 1, 8), device=describe_device(Path())))
    assert main(["plan", "opt-6.7b", "--memory", "8GiB", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["plan"]["io_threads"] == 8  # its reads are used
    assert found["expected"]["token"] is None
    assert "on another processor" in captured.err
    assert "measure again with `flashllm bench io`" in captured.err


@pytest.mark.parametrize("select", ["all", "predicted"])
def test_a_checkpoint_is_planned_as_it_is_once_converted(
    tmp_path: Path, profile: Path, capsys: pytest.CaptureFixture[str], select: str
) -> None:
    model = sparse_opt()
    source = save_opt(model, tmp_path / "source")
    predictors = save_exact_predictors(model, tmp_path / "predictors.safetensors")
    convert(source, tmp_path / "converted", predictors=predictors)
    settings = ["--profile", str(profile), "--select", select]
    # Nothing was recorded of this one.
    settings += ["--active", "0.1", "--window", "4"] if select == "predicted" else []
    before = told(capsys, str(source), *settings)
    after = told(capsys, str(tmp_path / "converted"), *settings)
    assert before["spec"] == after["spec"]
    assert before["weights_bytes"] == after["weights_bytes"]
    for name in ("window", "io_threads", "gap_bytes", "slots_per_layer"):
        assert before["plan"][name] == after["plan"][name], name
    for name, nbytes in before["plan"]["split"].items():
        # Of the predictors the rank is assumed; headers of files come on top of the tensors.
        # The process itself may have grown meanwhile.
        room = 32 << 20 if name == "interpreter" else 64 << 10
        assert after["plan"]["split"][name] == pytest.approx(nbytes, rel=0.05, abs=room), name
    expected, found = before["expected"]["token"], after["expected"]["token"]
    assert found["total"] == pytest.approx(expected["total"], rel=0.01)


def test_a_converted_model_is_expected_by_what_was_recorded(
    demo: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys, str(demo), "--memory", "4GiB", "--profile", str(profile))
    assert found["expected"]["assumed"] == ""
    recorded = json.loads((demo / "activity.json").read_text())
    used = sum(recorded["predicted"]["s_agg"][0])
    assert found["expected"]["traffic"]["used"] == pytest.approx(used)


def test_a_converted_models_plan_is_the_one_that_it_runs_with(
    sparse_model: Path, demo: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for directory in (sparse_model, demo):
        shared = [str(directory), "--memory", "4GiB", "--profile", str(profile)]
        found = told(capsys, *shared)["plan"]
        assert main(["info", "--plan", "--json", *shared]) == 0
        used = json.loads(capsys.readouterr().out)["plan"]
        for name in ("window", "slots_per_layer", "io_threads", "gap_bytes", "select"):
            assert found[name] == used[name], name
