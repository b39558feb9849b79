"""Settings as text: read, refused with words, written again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashllm.engine.sampling import Sampling
from flashllm.errors import UsageError
from flashllm.options import ReasoningOptions
from flashllm.ui.commands.setting_values import SETTINGS, ChatValues, find_setting
from flashllm.ui.widgets.themes import find_theme

THEMES = ("nord", "textual-dark")


@pytest.mark.parametrize(
    ("name", "text", "changed"),
    [
        ("temp", "0.7", {"temperature": 0.7}),
        ("temperature", " 1 ", {"temperature": 1.0}),
        ("top_k", "40", {"top_k": 40}),
        ("TOP-P", "0.9", {"top_p": 0.9}),
        ("min_p", "0.05", {"min_p": 0.05}),
        ("penalty", "1.1", {"repetition_penalty": 1.1}),
        ("seed", "7", {"seed": 7}),
    ],
)
def test_sampling_is_read(name: str, text: str, changed: dict[str, float]) -> None:
    assert ChatValues().with_text(name, text).sampling == Sampling(**changed)  # type: ignore[arg-type]


def test_the_others_are_read() -> None:
    values = ChatValues().with_text("n", "9").with_text("system", " Be\x1b[2J brief. ")
    values = values.with_text("theme", "Nord", THEMES)
    values = values.with_text("think", " Off ").with_text("effort", "low")
    assert (values.max_tokens, values.system, values.theme) == (9, "Be brief.", "nord")
    assert values.reasoning == ReasoningOptions("off", "low")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("temp", "warm", "temp: 'warm' is not a number"),
        ("temp", "-1", "temp: '-1' is out of range; expected 0 or more"),
        ("temperature", "inf", "temp: 'inf' is not a number"),
        ("temp", "", "temp: '' is not a number"),
        ("top_k", "1.5", "top_k: '1.5' is not a whole number of 0 or more"),
        ("top_p", "0", "top_p: '0' is out of range; expected above 0, at most 1"),
        ("min_p", "2", "min_p: '2' is out of range; expected 0 or more, at most 1"),
        ("penalty", "0", "repetition_penalty: '0' is out of range; expected above 0"),
        ("seed", str(1 << 64), "seed: '18446744073709551616' is too large; expected less than"),
        ("max_tokens", "0", "max_tokens: '0' is too small; 1 is the least"),
        ("max_tokens", "a\x1b[2Jb", "max_tokens: 'ab' is not a whole number"),
        ("effort", "much", "effort: 'much' is unknown; expected one of auto, low, medium, high"),
        ("theme", "nrod", "there is no theme 'nrod'; did you mean 'nord'?"),
        ("tmep", "1", "there is no setting 'tmep'; did you mean 'temp'?"),
        ("zzzz", "1", "there is no setting 'zzzz'; there are system, temp"),
    ],
)
def test_what_is_wrong_is_said(name: str, text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        ChatValues().with_text(name, text, THEMES)
    assert words in str(caught.value)


def test_what_is_written_reads_back_the_same() -> None:
    values = ChatValues("Be brief.", Sampling(0.7, 40, 0.9, 0.05, 1.1, (1 << 60) + 1), 99, "nord")
    values = replace(values, reasoning=ReasoningOptions("on", "high"))
    read = ChatValues()
    for name, text in values.rows():
        read = read.with_text(name, text, THEMES)
    assert read == values
    assert [name for name, _ in values.rows()] == [setting.name for setting in SETTINGS]


def test_names() -> None:
    assert find_setting("temperature").name == "temp"
    assert find_theme(" NORD", THEMES) == "nord"


def test_a_conversation_brings_its_own_but_for_what_was_given() -> None:
    values = ChatValues("s", Sampling(0.7, 40, 0.9, 0.05, 1.1, 7), 99)
    assert ChatValues("s").adopting(values.kept()) == values
    kept = {**values.kept(), "top_p": 7, "seed": "x\x1b[2J", "theme": "nord", "other": [1]}
    adopted = ChatValues().adopting(kept, ["temp"])
    assert adopted == ChatValues("", Sampling(0.0, 40, 1.0, 0.05, 1.1, 0), 99)
