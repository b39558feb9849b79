"""The tokenizer in the metadata of a GGUF, as the files that checkpoints have.

A byte-level vocabulary becomes a `tokenizer.json`, one of sentencepiece a `tokenizer.model` with
the same pieces, scores and types, so that the libraries of both compute what they always compute.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flashllm.errors import NotACheckpoint, UnsupportedModel
from flashllm.tokenizer.tokenizer_json import AddedToken

from ..families.gguf_vocabularies import (
    BYTE_LEVEL,
    NO_VOCABULARY,
    SENTENCEPIECE,
    SPLITS,
    TextSplit,
)
from ..source.gguf_header import MetaValue
from .tokenizer_files import TOKENIZERS

_PREFIX = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
_CONFIG_FILE = "tokenizer_config.json"
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
"""Types of tokens, in GGUF as in sentencepiece."""
_ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""In `tokenizer_config.json`, and in front of `_token_id` in the metadata."""
_ADVICE = "put the tokenizer.json of the model beside the file, and it is taken instead"


def made_tokenizer(
    path: Path, metadata: Mapping[str, MetaValue] | None, present: Sequence[str]
) -> dict[str, bytes]:
    """The files of a tokenizer by name, except those that are `present` beside the model.

    Nothing without metadata, or where these have no vocabulary. `UnsupportedModel` for one of a
    kind that nobody here knows, `NotACheckpoint` for a damaged one; `path` is for messages.
    """
    if metadata is None:
        return {}
    has_tokenizer = not set(present).isdisjoint(TOKENIZERS)
    kind = metadata.get(f"{_PREFIX}model", NO_VOCABULARY[0])
    if has_tokenizer and f"{_PREFIX}tokens" not in metadata:
        return {}
    if kind in NO_VOCABULARY:
        return {}
    vocabulary = _Vocabulary(path, metadata)
    made: dict[str, bytes] = {}
    if _CONFIG_FILE not in present:
        made[_CONFIG_FILE] = _json(vocabulary.config(str(kind)))
    if has_tokenizer:
        return made
    if kind == BYTE_LEVEL:
        made["tokenizer.json"] = _json(vocabulary.byte_level())
    elif kind == SENTENCEPIECE:
        made["tokenizer.model"] = vocabulary.sentencepiece()
    else:
        raise UnsupportedModel(
            f"{path}: tokenizer.ggml.model is {kind!r:.40}, which is not supported; {_ADVICE}"
        )
    return made


class _Vocabulary:
    """The keys of a vocabulary, checked as they are read."""

    def __init__(self, path: Path, metadata: Mapping[str, MetaValue]) -> None:
        self._path = path
        self._metadata = metadata
        self.tokens = self._texts("tokens")
        self.types = self._numbers("token_type", len(self.tokens), default=_NORMAL)

    def config(self, kind: str) -> dict[str, Any]:
        """`tokenizer_config.json`: special tokens, what texts begin with, the chat template."""
        names = {role: self._token(name) for role, name in _ROLES.items()}
        split = SPLITS.get(str(self._value("pre", "")), TextSplit())
        default = kind == SENTENCEPIECE or split.adds_bos
        found: dict[str, Any] = {name: token for name, token in names.items() if token is not None}
        found["add_bos_token"] = bool(self._value("add_bos_token", default))
        template = self._metadata.get(_TEMPLATE)
        if isinstance(template, str):
            found["chat_template"] = template
        return found

    def byte_level(self) -> dict[str, Any]:
        """`tokenizer.json` of a vocabulary whose pieces are merged from bytes."""
        name = self._value("pre", "")
        split = SPLITS.get(name) if isinstance(name, str) else None
        if split is None:
            known = ", ".join(SPLITS)
            said = f"is {name!r:.40}" if name else "is missing"
            raise UnsupportedModel(
                f"{self._path}: tokenizer.ggml.pre {said}; it says where text is split, which is"
                f" known for {known}; {_ADVICE}"
            )
        ids = {token: number for number, token in enumerate(self.tokens)}
        if len(ids) < len(self.tokens):
            raise self._wrong("tokens", "has a token twice")
        return {
            "version": "1.0",
            "added_tokens": self._added(),
            "normalizer": {"type": "NFC"} if split.nfc else None,
            "pre_tokenizer": _pre_tokenizer(split),
            "decoder": _byte_level(use_regex=True),
            "model": {
                "type": "BPE",
                "vocab": ids,
                "merges": self._merges(ids),
                "ignore_merges": split.ignore_merges,
            },
        }

    def sentencepiece(self) -> bytes:
        """`tokenizer.model` (sentencepiece_model.proto: ModelProto)."""
        scores = self._numbers("scores", len(self.tokens))
        unknown = self._value("unknown_token_id", 0)
        types = [int(kind) for kind in self.types]
        if _UNKNOWN not in types and type(unknown) is int and 0 <= unknown < len(types):
            types[unknown] = _UNKNOWN
        pieces = b"".join(
            _field(1, _field(1, token.encode()) + _float(2, float(score)) + _number(3, kind))
            for token, score, kind in zip(self.tokens, scores, types, strict=True)
        )
        trainer = _number(3, 2) + _number(4, len(self.tokens)) + _number(35, _BYTE in types)
        names = (self._token(name) for name in ("unknown", "bos", "eos", "padding"))
        for number, name in enumerate(names, 45):
            # A name that no piece has stands for none.
            trainer += _field(number, (name or "<absent>").encode())
        normalizer = _field(1, b"identity") + _number(4, 0) + _number(5, 1)
        normalizer += _number(3, bool(self._value("add_space_prefix", True)))
        return pieces + _field(2, trainer) + _field(3, normalizer)

    def _added(self) -> list[dict[str, Any]]:
        """Tokens that are matched whole, with their ids."""
        return [
            AddedToken(token, special=kind == _CONTROL).entry(number)
            for number, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind in (_CONTROL, _USER_DEFINED)
        ]

    def _merges(self, ids: Mapping[str, int]) -> list[str]:
        merges = self._texts("merges")
        for rule in merges:
            first, _, second = rule.partition(" ")
            if first not in ids or second not in ids or first + second not in ids:
                raise self._wrong("merges", f"has {rule!r:.80}, whose parts are no tokens")
        return merges

    def _token(self, role: str) -> str | None:
        """The token that has a role; None where none has it."""
        number = self._value(f"{role}_token_id", None)
        if number is None or number == 0xFFFFFFFF:
            return None
        if type(number) is not int or not 0 <= number < len(self.tokens):
            raise self._wrong(f"{role}_token_id", f"is {number!r:.40}")
        return self.tokens[number]

    def _value(self, name: str, default: MetaValue | None) -> MetaValue | None:
        return self._metadata.get(f"{_PREFIX}{name}", default)

    def _texts(self, name: str) -> list[str]:
        found = self._value(name, None)
        if not isinstance(found, list) or not found:
            raise self._wrong(name, "is no list of texts")
        return found

    def _numbers(self, name: str, count: int, default: int | None = None) -> Sequence[Any]:
        found = self._value(name, None)
        if found is None and default is not None:
            return [default] * count
        if not isinstance(found, np.ndarray) or len(found) != count:
            raise self._wrong(name, f"is no list of {count} numbers, one for each token")
        return found.tolist()  # type: ignore[no-any-return]

    def _wrong(self, name: str, what: str) -> NotACheckpoint:
        return NotACheckpoint(f"{self._path}: {_PREFIX}{name} {what}; {_ADVICE}")


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _pre_tokenizer(split: TextSplit) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    if split.single_digits:
        steps.append({"type": "Digits", "individual_digits": True})
    if split.pattern:
        pattern = {"Regex": split.pattern}
        steps.append({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False})
    steps.append(_byte_level(use_regex=not split.pattern))
    return {"type": "Sequence", "pretokenizers": steps}


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _varint(value: int) -> Iterator[int]:
    while value >= 0x80:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value


def _field(number: int, content: bytes) -> bytes:
    """A field of protobuf that holds bytes."""
    return bytes((*_varint(number << 3 | 2), *_varint(len(content)))) + content


def _number(number: int, value: int) -> bytes:
    """A field of protobuf that holds a whole number."""
    return bytes((*_varint(number << 3), *_varint(value)))


def _float(number: int, value: float) -> bytes:
    return bytes(_varint(number << 3 | 5)) + struct.pack("<f", value)
