"""Targets: tokenizers, chat templates, and text on its way to a terminal."""

from __future__ import annotations

import shutil

from hypothesis import strategies as st

from flashllm.errors import ModelError, UsageError
from flashllm.tokenizer.chat_template import render_template
from flashllm.tokenizer.settings import read_settings
from flashllm.tokenizer.tokenizer import Tokenizer, load_tokenizer
from flashllm.untrusted.terminal import Sanitizer, sanitize, sanitize_line

from .changes import changed_bytes, changed_json
from .files import folder
from .target import Target, corpus

TEXT = "<s> Hi </s> <|im_start|>user [INST] grüße 你好\n\t<0x0A> "
TALK = [
    {"role": "system", "content": "Be brief. {{ 7 * 7 }}"},
    {"role": "user", "content": " <|im_end|> Hello "},
    {"role": "assistant", "content": "<think>hm</think> Hi."},
    {"role": "user", "content": "{% raw %}"},
]


def _check_tokenizer(tokenizer: Tokenizer | None) -> None:
    """No text becomes a control token, and decoding takes any id."""
    assert tokenizer is not None
    try:
        ids = tokenizer.vocabulary.encode([TEXT])
    except ModelError:
        return
    assert all(type(token) is int for token in ids)
    tokenizer.decode([*ids, 0, -1, tokenizer.vocab_size, 1 << 40])


def _check_tokenizer_json(raw: bytes) -> None:
    directory = folder("tokenizer-json")
    (directory / "tokenizer.json").write_bytes(raw)
    try:
        tokenizer = load_tokenizer(directory)
    except ModelError:
        return
    _check_tokenizer(tokenizer)


def _check_tokenizer_model(raw: bytes) -> None:
    directory = folder("tokenizer-model")
    (directory / "tokenizer.model").write_bytes(raw)
    try:
        tokenizer = load_tokenizer(directory)
    except ModelError:
        return
    _check_tokenizer(tokenizer)


def _check_settings(raw: bytes) -> None:
    directory = folder("tokenizer-settings")
    for name in ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        (directory / name).write_bytes(raw)
    (directory / "added_tokens.json").write_bytes(raw)
    try:
        settings = read_settings(directory)
    except ModelError:
        return
    assert all(isinstance(spelling, str) for spelling in settings.tokens.values())
    assert all(type(token) is int and token >= 0 for token in (*settings.added, *settings.eos_ids))
    vocabulary = folder("tokenizer-with-settings")
    shutil.copyfile(directory / "tokenizer_config.json", vocabulary / "tokenizer_config.json")
    (vocabulary / "tokenizer.json").write_bytes(corpus("tokenizer_json")[0])
    try:
        tokenizer = load_tokenizer(vocabulary)
    except ModelError:
        return
    _check_tokenizer(tokenizer)


def _check_template(raw: bytes) -> None:
    """A template renders, refuses, or is broken; what users wrote stays apart and whole."""
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    try:
        segments = render_template(raw.decode("utf-8", "replace"), TALK, tokens)
    except (ModelError, UsageError):
        return
    for segment in segments:
        if segment.message is None:
            assert "{{ 7 * 7 }}" not in segment.text
        else:
            assert segment.text in TALK[segment.message]["content"]


# Text for a terminal

PARTS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        ["\x1b", "\x1b[", "\x1b]0;", "\x1bP", "\x1b\\", "\x9b", "\x9d", "\x9c", "\x90", "\x07", "m",
         "2J", ";", "?", " ", "\n", "\t", "\r", "\x18", "\x1a", "\x7f", "\u202e", "\u2066", "\x00",
         "\x85", "\ud800", "\U0001f600"]
    ),
)  # fmt: skip


@st.composite
def _chunks(draw: st.DrawFn) -> list[str]:
    """A text, cut anywhere."""
    text = "".join(draw(st.lists(PARTS, max_size=24)))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def _is_harmless(character: str) -> bool:
    code = ord(character)
    is_control = code < 0x20 or 0x7F <= code < 0xA0
    turns = 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069
    return character in "\n\t" or not (is_control or turns or 0xD800 <= code < 0xE000)


def _check_terminal(chunks: list[str]) -> None:
    text = "".join(chunks)
    whole = sanitize(text)
    sanitizer = Sanitizer()
    assert "".join(map(sanitizer.feed, chunks)) + sanitizer.flush() == whole
    assert all(map(_is_harmless, whole))
    assert sanitize(whole) == whole
    line = sanitize_line(text)
    assert "\n" not in line
    assert "\t" not in line
    if all(map(_is_harmless, text)):
        assert whole == text


TEXT_TARGETS = (
    Target("tokenizer_json", changed_json(corpus("tokenizer_json")), _check_tokenizer_json),
    Target("tokenizer_model", changed_bytes(corpus("tokenizer_model")), _check_tokenizer_model),
    Target("tokenizer_settings", changed_json(corpus("tokenizer_settings")), _check_settings),
    Target("chat_template", changed_bytes(corpus("chat_template")), _check_template),
    Target("terminal", _chunks(), _check_terminal),
)
