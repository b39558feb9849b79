"""Known words that a mistyped one comes near to."""

from __future__ import annotations

import pytest

from flashllm.settings.nearest import nearest

OPTIONS = ("--temp", "--top-k", "--top-p", "--memory", "--ctx-size", "--max-tokens")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--temperature", "--temp"),
        ("--top_p", "--top-p"),
        ("--TOP-K", "--top-k"),
        ("--memroy", "--memory"),
        ("--max_token", "--max-tokens"),
        ("--ctxsize", "--ctx-size"),
        ("--zzz", None),
        ("-", None),
        ("", None),
    ],
)
def test_the_nearest_option(word: str, expected: str | None) -> None:
    assert nearest(word, OPTIONS) == ([expected] if expected else [])


def test_the_most_alike_come_first_then_those_that_begin_alike() -> None:
    names = ("tiny-125m", "tiny-1.3b", "tinier", "demo")
    assert nearest("tiny-125", names, 3) == ["tiny-125m", "tiny-1.3b"]
    assert nearest("tin", names, 2)[0] in ("tinier", "tiny-1.3b")
    assert nearest("te", names, 3) == []
    assert nearest("dmeo", names, 3) == ["demo"]


def test_how_alike_is_alike_can_be_said() -> None:
    assert nearest("do", ["demo"]) == ["demo"]
    assert nearest("do", ["demo"], cutoff=0.75) == []
    assert nearest("dmo", ["demo"], cutoff=0.75) == ["demo"]
