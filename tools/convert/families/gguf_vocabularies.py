"""Vocabularies in GGUF as data: kinds of them, and where each splits text before it merges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

SENTENCEPIECE, BYTE_LEVEL = "llama", "gpt2"
"""What `tokenizer.ggml.model` calls the kinds that are read."""
NO_VOCABULARY = ("none", "no_vocab")


@dataclass(frozen=True, slots=True)
class TextSplit:
    """How text is prepared for the merges of a byte-level vocabulary.

    Without a `pattern` it is split as GPT-2 splits it.
    """

    pattern: str = ""
    single_digits: bool = False
    """Whether each digit is split off first."""
    nfc: bool = False
    """Whether characters are composed first (Unicode's normal form C)."""
    ignore_merges: bool = False
    """Whether a stretch that is in the vocabulary is taken as it is."""
    adds_bos: bool = False
    """Whether texts begin with a token of their own where the metadata do not say."""


# Parts of patterns that several vocabularies share; each is as its tokenizer.json has it.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_SYMBOLS_AND_SLASHES = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*"
_WORDS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
)

_LLAMA3 = TextSplit(
    rf"{_WORDS}|\p{{N}}{{1,3}}{_SYMBOLS}{_SPACES}", ignore_merges=True, adds_bos=True
)
_GLM4 = replace(_LLAMA3, ignore_merges=False, adds_bos=False)
_QWEN2 = TextSplit(rf"{_WORDS}|\p{{N}}{_SYMBOLS}{_SPACES}", nfc=True)
_GPT4O = TextSplit(
    rf"{_CASED[0]}{_CONTRACTIONS}?|{_CASED[1]}{_CONTRACTIONS}?|\p{{N}}{{1,3}}"
    rf"{_SYMBOLS_AND_SLASHES}{_SPACES}",
    ignore_merges=True,
)
_TEKKEN = TextSplit(
    rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}{_SYMBOLS_AND_SLASHES}{_SPACES}",
    ignore_merges=True,
    adds_bos=True,
)

SPLITS: Mapping[str, TextSplit] = {
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": replace(_QWEN2, adds_bos=True),
    "glm4": _GLM4,
    "chatglm-bpe": _GLM4,
    "gpt-4o": _GPT4O,
    "tekken": _TEKKEN,
    "gpt-2": TextSplit(),
    "olmo": TextSplit(nfc=True),
    "smollm": TextSplit(single_digits=True),
}
"""By `tokenizer.ggml.pre`."""
