"""`flashllm eval`: what it prints, draws and refuses."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from flashllm.convert import convert
from flashllm.predictors.evaluation import tables

import flashllm
from flashllm.cli.main import main
from tests.support.tiny import save_opt, sparse_opt, tiny

DEMO = Path(flashllm.__file__).parent / "demo"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith("FLASHLLM_") and name != "FLASHLLM_HOME":
            monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.ids"
    ids = np.random.default_rng(0).integers(4, 96, (5, 100))
    path.write_text("\n".join(" ".join(map(str, line)) for line in ids))
    return path


def evaluated(capsys, *arguments):
    """What the command prints as JSON."""
    assert main(["eval", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    """What the command says on standard error when it refuses, with nothing said elsewhere."""
    assert main(["eval", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def test_everything_is_in_the_json(capsys, sparse_model, text):
    report = evaluated(capsys, sparse_model, "--text", text, "--skip", 3, "--seed", 4)
    assert report["model"]
    assert report["select"] == "predicted"
    assert report["lossy"] is True
    assert set(report["versions"]) == {"flashllm", "python", "numpy"}
    found = report["text"]
    assert len(found["sha256"]) == 64
    assert found["settings"] == {"tokens": 20000, "skip": 3, "all_tokens": False, "seed": 4}
    assert set(found["modes"]) == {"dense", "oracle", "predicted"}
    assert set(found["modes"]["predicted"]) == {
        "perplexity",
        "ratio",
        "ratio_stderr",
        "same_token",
        "divergence_nats",
    }
    columns = {"active", "chosen", "false_negatives", "false_positives", "missed_mass"}
    assert set(found["mean"]) == columns
    assert [set(layer) for layer in found["layers"]] == [columns] * report["layers"]
    for window in found["windows"].values():
        assert set(window) == {
            "s_agg",
            "loads",
            "slots_needed",
            "gaps",
            "mean_share_held",
            "mean_share_loaded",
            "bytes_held",
            "bytes_per_token",
        }
        assert len(window["bytes_per_token"]) == 64
    assert len(found["margins"]) == len(found["friends"]) == report["layers"]
    # The predictors of this model are never wrong.
    assert found["mean"]["false_negatives"] == pytest.approx(0.0, abs=1e-3)
    assert found["modes"]["predicted"]["ratio"] == pytest.approx(1.0, abs=1e-3)


def test_the_tables_fit_a_terminal(capsys, sparse_model, text):
    assert main(["eval", str(sparse_model), "--text", str(text)]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    for expected in ("predicted (lossy)", "perplexity", "false negatives", "bytes/token", "8th"):
        assert expected in shown
    assert shown.index("perplexity") < shown.index("layer  active")


@pytest.mark.parametrize("select", ["all", "oracle"])
def test_with_nothing_to_judge_the_true_activity_is_shown(capsys, sparse_model, text, select):
    assert main(["eval", str(sparse_model), "--text", str(text), "--select", select]) == 0
    shown = capsys.readouterr().out
    assert shown.count("oracle: held") == 1
    assert "false neg" not in shown
    assert "lossy" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_model_that_is_never_zero(capsys, text, tmp_path):
    model = tiny("llama", hidden_act="silu", intermediate_size=60, num_key_value_heads=2)
    convert(save_opt(model, tmp_path / "source"), tmp_path / "converted")
    arguments = ["eval", str(tmp_path / "converted"), "--text", str(text)]
    assert main([*arguments, "--plot", str(tmp_path / "pictures")]) == 0
    captured = capsys.readouterr()
    assert "dense" in captured.out
    assert "window" not in captured.out
    assert "nothing was drawn" in captured.err


def test_the_demo_on_its_own_questions(capsys, demo):
    tasks = ["--tasks", DEMO / "choices.jsonl", "--tasks", DEMO / "heldout.jsonl", "--limit", "12"]
    choices, said = evaluated(capsys, demo, *tasks)["tasks"]
    found = choices["multiple_choice"]
    assert set(found["measures"]) == {"acc", "acc_norm"}
    # Nine of the twelve ask for known words; of the others a model guesses one in four.
    assert found["groups"]["known word"]["measures"]["acc"]["dense"]["right"] >= 0.9
    assert found["measures"]["acc"]["same_answer"] >= 0.9
    found = said["generation"]
    assert found["questions"] == sum(group["questions"] for group in found["groups"].values())
    exact = found["groups"]["definition"]["measures"]["exact"]
    assert exact["dense"]["right"] >= 0.8
    assert exact["predicted"]["right"] == pytest.approx(exact["dense"]["right"], abs=0.2)
    assert main(["eval", str(demo), *map(str, tasks[:2]), "--limit", "3"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "all acc_norm" in shown
    assert "choices.jsonl, 3 of 800 questions" in shown


def test_pictures_are_drawn(capsys, sparse_model, text, tmp_path):
    folder = tmp_path / "new" / "pictures"
    arguments = ["eval", str(sparse_model), "--text", str(text), "--plot", str(folder)]
    assert main(arguments) == 0
    assert "wrote" in capsys.readouterr().err
    names = {path.name: path.read_bytes()[:8] for path in folder.iterdir()}
    assert set(names) == {"windows.png", "layers.png", "margins.png", "friends.png"}
    assert set(names.values()) == {b"\x89PNG\r\n\x1a\n"}


def test_without_matplotlib_it_says_what_to_install(capsys, sparse_model, text, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    said = refused(capsys, sparse_model, "--text", text, "--plot", text.parent / "pictures")
    assert "flashllm[bench]" in said
    assert not (text.parent / "pictures").exists()


def test_a_place_for_pictures_that_cannot_be(capsys, sparse_model, text):
    assert main(["eval", str(sparse_model), "--text", str(text), "--plot", str(text)]) == 73
    assert "cannot be created" in capsys.readouterr().err


def test_nothing_to_evaluate_on(capsys, sparse_model):
    assert "give --text FILE, --tasks FILE, or both" in refused(capsys, sparse_model)


def test_pictures_without_a_text(capsys, sparse_model, text):
    assert "give a text" in refused(capsys, sparse_model, "--tasks", text, "--plot", "x")


def test_predictors_that_are_not_there(capsys, text, tmp_path):
    convert(save_opt(sparse_opt(), tmp_path / "source"), tmp_path / "converted")
    said = refused(capsys, tmp_path / "converted", "--text", text, "--select", "predicted")
    assert "no predictors" in said
    assert "Traceback" not in said


def test_a_text_that_is_words_for_a_model_of_ids(capsys, sparse_model, tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("word " * 1_000)
    assert "no tokenizer; give token ids" in refused(capsys, sparse_model, "--text", path)


@pytest.mark.parametrize("flag", ["--text", "--tasks"])
@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file"), (b" \n", "the file is empty"), (b"ab\xff", "not UTF-8 text (byte 2)")],
)
def test_files_that_cannot_be_used(capsys, sparse_model, tmp_path, flag, content, message):
    path = tmp_path / "file.jsonl"
    if content is not None:
        path.write_bytes(content)
    said = refused(capsys, sparse_model, flag, path)
    assert f"{path}: {message}" in said


def test_without_arguments_the_demo_is_evaluated_on_what_comes_with_it(capsys, demo, monkeypatch):
    monkeypatch.setattr("flashllm.cli.shared.open_model.model_directory", lambda model: demo)
    report = evaluated(capsys, "--tokens", 1000, "--limit", 2)
    assert Path(report["text"]["file"]) == DEMO / "heldout.jsonl"
    names = [Path(tasks["file"]).name for tasks in report["tasks"]]
    assert names == ["choices.jsonl", "heldout.jsonl"]
    assert report["text"]["modes"]["predicted"]["ratio"] <= 1.01


def test_sentences_sum_a_report_up(capsys, sparse_model, text):
    report = evaluated(capsys, sparse_model, "--text", text)
    found, mean = report["text"], report["text"]["mean"]
    summed = tables.summary_text(report)
    assert " ".join(tables.report_table(report).rpartition("\n\n")[2].split()) == summed
    assert summed.startswith(f"On {found['tokens_scored']:,} tokens the perplexity is ")
    assert f"{found['modes']['predicted']['ratio']:.4f} of the exact model's" in summed
    assert f"{mean['active']:.1%} of the neurons are active" in summed
    assert f"{mean['false_negatives']:.1%} of these are missed" in summed
    exact = evaluated(capsys, sparse_model, "--text", text, "--select", "all")
    assert " the perplexity is " in tables.summary_text(exact)
    assert "missed" not in tables.summary_text(exact)
    measures = {"dense": {"right": 0.75}, "predicted": {"right": 0.5}}
    tasks = {"file": "/x/q.jsonl", "generation": {"questions": 8, "measures": {"exact": measures}}}
    asked = {"select": "predicted", "tasks": [tasks]}
    assert tables.summary_text(asked) == (
        "Of 8 questions in q.jsonl, 75.0% are answered right with all neurons and 50.0% with those"
        " selected."
    )
    asked["select"] = "all"
    assert tables.summary_text(asked) == "Of 8 questions in q.jsonl, 75.0% are answered right."


def test_hopeless_figures_fit_a_terminal_too(capsys, sparse_model, text):
    report = evaluated(capsys, sparse_model, "--text", text)
    for found in report["text"]["modes"].values():
        found |= {"perplexity": 1e304, "ratio": 2e200, "ratio_stderr": 3e190}
        found["divergence_nats"] = -1e-9
    shown = tables.report_table(report)
    assert max(map(len, shown.splitlines())) <= 80
    assert "1e+304" in shown
    assert "-0.00000" not in shown


def test_a_ceiling_that_is_too_small_counts_what_is_counted(capsys, sparse_model, text):
    arguments = ["eval", str(sparse_model), "--text", str(text)]
    assert main([*arguments, "--memory", "10MiB"]) == 71
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "application" in captured.err
    smallest = int(re.search(r"the smallest that works here is (\d+) MiB", captured.err)[1])
    # Next to nothing was opened since, so that it fits with a little more.
    report = evaluated(capsys, sparse_model, "--text", text, "--memory", f"{smallest + 64}MiB")
    assert (
        report["text"]["modes"] == evaluated(capsys, sparse_model, "--text", text)["text"]["modes"]
    )


def test_a_policy_of_keys_and_values_is_a_mode(capsys, sparse_model, text):
    """Token by token; with everything seen it is the mode that it is held against."""
    everything = ["--kv-budget", "1", "--kv-alpha", "100", "--kv-recall", "0"]
    start = ["--text", text, "--kv-policy", "infinigen", "--spec-start-layer", "1"]
    report = evaluated(capsys, sparse_model, *start, *everything)
    assert (report["kv_policy"], report["lossy"]) == ("infinigen", True)
    modes = report["text"]["modes"]
    assert list(modes) == ["dense", "oracle", "predicted", "infinigen"]
    assert modes["infinigen"]["ratio"] == pytest.approx(1.0, abs=1e-4)
    assert modes["infinigen"]["same_token"] == 1.0
    assert set(report["text"]["windows"]) == {"oracle", "predicted"}
    assert main(["eval", str(sparse_model), *map(str, start), "--kv-budget", "5%"]) == 0
    shown = capsys.readouterr().out
    assert "as infinigen chooses (lossy)" in shown
    few = next(line for line in shown.splitlines() if line.startswith("infinigen "))
    assert float(few.split()[2]) != 1.0
    assert "kv-recall is 1" in refused(capsys, sparse_model, *start, "--kv-recall", "1")
    # Which of them leave memory first is nothing that an answer depends on.
    modes = [
        evaluated(capsys, sparse_model, *start, *given)["text"]["modes"]
        for given in ([], ["--kv-memory", "128KiB", "--kv-victims", "counter"])
    ]
    assert modes[0] == modes[1]
    assert "expected one of fifo" in refused(capsys, sparse_model, *start, "--kv-victims", "some")
