"""`flashllm plan --batch`: policies and searches for models and machines by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flashllm.cli.main import main
from flashllm.errors import UsageError
from flashllm.hardware.machine_profile import save
from flashllm.planning.batch.machine import (
    FILE_BYTES_MAX,
    MACHINES,
    known_machines,
    read_values,
)
from flashllm.units import GIB
from tests.support.profiles import law

T4 = ["--batch", "--machine", "t4-paper", "--prompt-len", "512", "--new-tokens", "32"]
POLICY_30B = "48,3,20,80,0,100,0,100"


def planned(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["plan", *words, "--json"]) == code
    values: dict[str, Any] = json.loads(capsys.readouterr().out)
    return values


def test_a_published_policy(capsys: pytest.CaptureFixture[str]) -> None:
    made = planned(capsys, "opt-30b", *T4, "--policy", POLICY_30B)
    assert made["fits"]
    assert made["peak_bytes"]["device"] / 1e9 == pytest.approx(15.92, abs=0.006)
    assert made["phases"]["decode"]["peak_bytes"]["device"] / 1e9 == pytest.approx(14.17, abs=0.006)
    assert made["peak_bytes"]["dram"] / 1e9 == pytest.approx(157.6, abs=0.06)
    assert made["peak_bytes"]["flash"] == 0
    assert made["tokens_per_second"] == pytest.approx(144 * 32 / made["latency_s"])
    phases = made["phases"]
    assert phases["prefill"]["seconds"] + phases["decode"]["seconds"] == pytest.approx(
        made["latency_s"]
    )
    assert made["binds"] == {"prefill": "compute", "decode": "compute", "memory": []}
    assert (made["policy"]["text"], made["policy"]["wd"]) == (POLICY_30B, 0)
    assert (made["pareto"], made["reason"], made["delegated"]) == (None, None, True)


def test_a_search_is_no_worse_and_lists_latencies(capsys: pytest.CaptureFixture[str]) -> None:
    by_hand = planned(capsys, "opt-30b", *T4, "--policy", POLICY_30B)
    best = planned(capsys, "opt-30b", *T4)
    assert best["tokens_per_second"] >= by_hand["tokens_per_second"]
    assert best["pareto"][-1]["policy"] == best["policy"]["text"]
    again = planned(capsys, "opt-30b", *T4, "--policy", best["policy"]["text"])
    assert again["fits"]
    assert again["tokens_per_second"] == pytest.approx(best["tokens_per_second"])


def test_cost_models_and_delegation(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["opt-30b", *T4, "--policy", POLICY_30B]
    speeds = {
        name: planned(capsys, *words, "--cost-model", name)["tokens_per_second"]
        for name in ("a3", "overlapped", "serialised", "sequential")
    }
    assert speeds["a3"] >= speeds["overlapped"] > speeds["serialised"] > speeds["sequential"]
    compressed = planned(capsys, *words, "--compress")
    assert (compressed["compress"], compressed["delegated"]) == (True, False)
    other = planned(capsys, *words, "--compress", "--delegation", "on")
    for one, two in ((compressed, other), (other, compressed)):
        assert one["other_delegation"]["tokens_per_second"] == two["tokens_per_second"]


def test_a_machine_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the form of those that come along; what is left out is the general rate."""
    values = json.loads((MACHINES / "t4-paper.json").read_text())
    file = tmp_path / "mine.json"
    needed = {
        name: value for name, value in values.items() if "kv" not in name and "decode" not in name
    }
    file.write_text(json.dumps(needed | {"name": "mine", "dram_bytes": 100 * GIB}))
    made = planned(
        capsys, "opt-30b", *T4, "--machine", str(file), "--policy", "48,3,20,80,0,100,0,100"
    )
    assert (made["machine"], made["fits"], made["would_fit"]["policy"]) == (
        *("mine", False),
        "48,1,20,80,0,100,0,100",
    )
    assert made["limit_bytes"]["dram"] == 100 * GIB
    assert made["would_fit"]["bytes"] == {"dram": made["peak_bytes"]["dram"]}
    assert "DRAM needs" in made["reason"]
    more = planned(
        *(capsys, "opt-30b", *T4, "--machine", str(file), "--policy", POLICY_30B),
        *("--memory", "208GiB"),
    )
    assert more["fits"]


def test_this_machine_by_its_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = save(law(1e-6, 2e9), tmp_path / "disk.json")
    words = ["opt-1.3b", "--batch", "--prompt-len", "64", "--new-tokens", "32"]
    profile = ["--machine", str(file), "--memory", "4GiB"]
    made = planned(capsys, *words, *profile, "--policy", "8,2,0,50,0,100,0,100")
    assert (made["machine"], made["cost_model"], made["delegated"]) == ("this", "measured", None)
    assert made["fits"]
    assert made["limit_bytes"]["dram"] == 4 * GIB
    assert made["peak_bytes"]["device"] == 0
    assert made["assumed"]
    text = ["plan", *words, "--profile", str(file), "--memory", "4GiB"]
    assert main([*text, "--policy", "8,2,0,50,0,100,0,100"]) == 0
    assert "50 % DRAM, 50 % flash" in capsys.readouterr().out


def test_what_people_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "opt-30b", *T4, "--pareto", "--latency", "150"]) == 0
    text = capsys.readouterr().out
    for words in (
        "It fits.",
        "new tokens a second",
        "answers wait for",
        "latency, s",
        "CPU attention",
    ):
        assert words in text
    assert main(["plan", "opt-30b", *T4, "--policy", "48,9,20,80,0,100,0,100"]) == 0
    text = capsys.readouterr().out
    assert "It does not fit: DRAM needs" in " ".join(text.split())
    assert "What would: --policy 48,4,20,80,0,100,0,100." in " ".join(text.split())
    assert main(["plan", "opt-30b", *T4, "--policy", "1,1,100,0,0,100,0,100"]) == 0
    assert "without --policy the best one is searched for" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_search_that_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    made = planned(capsys, "opt-175b", *T4, "--memory", "1GiB", code=71)
    assert (made["fits"], made["policy"], made["peak_bytes"]) == (False, None, None)
    assert made["would_fit"]["bytes"]["dram"] > GIB
    assert "of DRAM would be enough" in made["reason"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*T4, "--policy", "48,3,20,90,0,100,0,100"], "wg + wc is 110 % of the weights"),
        ([*T4, "--policy", "48,3,20,80"], "has 4 numbers; expected 8"),
        ([*T4, "--policy", "lru"], "--batch takes a policy like"),
        ([*T4, "--policy", "lrux"], "did you mean lru?"),
        ([*T4, "--machine", "t5-paper"], "no machine of that name is known (this, t4-paper)"),
        ([*T4, "--prompt-len", "-512"], "'-512' is not a whole number"),
        ([*T4, "--new-tokens", "0"], "'0' is too small"),
        ([*T4, "--latency", "-1"], "expected above 0"),
        ([*T4, "--prompt-len", "4000"], "2048 positions"),
        ([*T4, "--cost-model", "a3", "--delegation", "off"], "A.3 always has the CPU"),
        (["--batch"], "--batch needs --prompt-len and --new-tokens"),
        (["--compress"], "--compress belongs to --batch"),
        (["--policy", POLICY_30B], "belongs to --batch"),
        (["--batch", "--prompt-len", "5", "--new-tokens", "5", "--delegation", "on"], "t4-paper"),
    ],
)
def test_bad_input(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = 0
    try:
        code = main(["plan", "opt-30b", *words])
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    shown = capsys.readouterr()
    assert (code, shown.out) == (2, "")
    assert message in shown.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("[]", "expected a JSON object"),
        ('{"name": "x"}', "is missing"),
        ('{"speed": 3}', "unknown key 'speed'"),
        ('{"dram_bytes": -1}', "machine.dram_bytes: is -1; expected"),
        ('{"dram_bytes": 0}', "machine.dram_bytes: is 0; expected"),
        ('{"dram_bytes": "many"}', "expected float, found str"),
        ('{"points": []}', "is no profile of version"),
    ],
)
def test_bad_machines(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "machine.json"
    if '"dram_bytes"' in text:
        values = json.loads((MACHINES / "t4-paper.json").read_text())
        text = json.dumps(values | json.loads(text))
    file.write_text(text)
    assert main(["plan", "opt-30b", *T4, "--machine", str(file)]) == 2
    assert message in capsys.readouterr().err


def test_files_that_are_no_machine(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--machine .*: cannot be read \(Is a directory\)"):
        read_values(tmp_path)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    with pytest.raises(UsageError, match="large: is too large to describe a machine"):
        read_values(tmp_path / "large")


def test_every_machine_that_comes_along_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert "t4-paper" in known_machines()
    for name in known_machines():
        made = planned(
            capsys, "opt-6.7b", *T4, "--machine", name, "--policy", "1,1,0,100,0,100,0,100"
        )
        assert made["machine"] == name
