"""Policies compared on a text: what must hold of any model, and the sums."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from flashllm.predictors.evaluation.likelihood import log_probabilities

from flashllm.bench.kv.cases import INT4, KvCase, parse_cases
from flashllm.bench.kv.report import table
from flashllm.bench.kv.runs import KvPassage, run_cases
from flashllm.cli.main import main
from flashllm.engine.loading import load_decoder
from flashllm.errors import UsageError
from flashllm.kv_cache.layout import fast_bytes, kv_bytes
from flashllm.options import KvSelection

IDS = np.random.default_rng(8).integers(3, 96, 150).tolist()
BASE = KvSelection("infinigen", start_layer=1)


def test_names_and_budgets_make_the_rows() -> None:
    cases = parse_cases(["infinigen", "int4", "full", "h2o"], [0.1, 0.2], BASE, "f16")
    named = [(case.name, case.share, case.kv_dtype) for case in cases]
    assert named == [
        ("full", None, "f16"),
        ("infinigen", 0.1, "f16"),
        ("infinigen", 0.2, "f16"),
        ("int4", None, INT4),
        ("h2o", 0.1, "f16"),
        ("h2o", 0.2, "f16"),
    ]
    limited = parse_cases(["infinigen"], [0.1], BASE, "f16", ["fifo", "counter"])
    assert [case.name for case in limited] == ["full", "infinigen, fifo", "infinigen, counter"]
    with pytest.raises(UsageError, match="--kv some: expected some of full, window"):
        parse_cases(["some"], [0.1], BASE, "f16")
    with pytest.raises(UsageError, match="--victims mru"):
        parse_cases(["infinigen"], [0.1], BASE, "f16", ["mru"])


def test_the_sums_are_those_of_the_definition(sparse_model: Path) -> None:
    everything = KvSelection("infinigen", share=1.0, alpha=100.0, recall=0.0, start_layer=1)
    decoder, _, store = load_decoder(sparse_model, contexts=2, kv_policy="specache")
    few = dataclasses.replace(BASE, share=0.1)
    cases = [
        KvCase("full", KvSelection(), "f16"),
        KvCase("infinigen", everything, "f16"),
        KvCase("window", dataclasses.replace(few, policy="window"), "f16"),
        KvCase("infinigen, fifo", few, "f16", "fifo"),
        KvCase("int4", KvSelection(), INT4),
    ]
    with store:
        runs = run_cases(decoder, cases, [KvPassage(IDS, 100)], 0.5)
        plain = decoder.new_context(decoder.new_keys_values(KvSelection()))
        logits = [decoder.prefill(IDS[:100], context=plain)]
        logits += [decoder.decode(token, plain) for token in IDS[100:149]]
        logs = log_probabilities(np.stack(logits))
    spec = decoder.spec
    rows = {row["policy"]: row for row in (run.to_json() for run in runs)}
    full, window = rows["full"], rows["window"]
    expected = np.exp(-logs[np.arange(50), IDS[100:]].astype(np.float64).mean())
    assert full["perplexity"] == pytest.approx(expected, rel=1e-5)
    assert full["accuracy"] == (logs.argmax(axis=1) == IDS[100:]).mean()
    mean = kv_bytes(spec, 1, "f16") * sum(range(100, 149)) / 49
    assert full["fetched_bytes_per_token"] == full["seen_bytes_per_token"] == mean
    # Everything fetched: the same numbers, and all of the layers that choose.
    same = rows["infinigen"]
    assert (same["perplexity"], same["ratio"]) == (full["perplexity"], 1.0)
    assert same["recall"] == pytest.approx(1.0)
    chosen = (spec.n_layers - 1) / spec.n_layers
    assert same["fetched_bytes_per_token"] == pytest.approx(chosen * mean)
    # A window keeps a tenth of two layers, and fetches nothing.
    kept = sum(int(0.1 * n) for n in range(100, 149)) / sum(range(100, 149))
    assert window["seen_share"] == pytest.approx(kept)
    assert window["seen_bytes_per_token"] == pytest.approx(mean / 3 + kept * mean * 2 / 3)
    assert window["fetched_bytes_per_token"] == 0
    assert window["fast_bytes"] == fast_bytes(spec, 150, "f16", cases[2].selection)
    assert window["recall"] < 1
    assert window["perplexity"] != full["perplexity"]
    # What gave way is not fetched: of 75 held tokens, at most a tenth of all.
    assert 0 < rows["infinigen, fifo"]["seen_share"] <= 0.1
    assert rows["int4"]["ratio"] != 1.0
    lines = table(list(rows.values())).splitlines()
    assert lines[3].startswith("window (lossy)")


def test_the_command(
    sparse_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    text = tmp_path / "text.ids"
    lines = np.random.default_rng(9).integers(3, 96, (3, 120))
    text.write_text("\n".join(" ".join(map(str, line)) for line in lines.tolist()))
    arguments = ["bench", "kv", str(sparse_model), "--text", str(text), "--prompt-share", "0.7"]
    short = ["-n", "300", "--kv", "infinigen,h2o", "--budget", "10%", "--spec-start-layer", "1"]
    assert main([*arguments, *short, "--json", "--plot", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["policy"] for row in found["rows"]] == ["full", "infinigen", "h2o"]
    assert found["complete"]
    assert found["header"]["settings"]["selection"]["start_layer"] == 1
    assert (tmp_path / "kv.png").stat().st_size > 1000
    assert main([*arguments, *short[:4], "--pool", "80%", "--victims", "lru"]) == 0
    output = capsys.readouterr().out
    assert "without skewing" in output
    assert "infinigen, lru (lossy)" in output
    for wrong, words in (
        (["--kv", "some"], "--kv some"),
        (["--victims", "lru"], "--pool"),
        (["--kv-recall", "1"], "kv_recall|kv-recall"),
    ):
        assert main([*arguments, *wrong]) == 2
        error = capsys.readouterr().err
        assert any(word in error for word in words.split("|"))
