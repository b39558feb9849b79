"""Pieces of text and their ids, from a model's tokenizer files.

A vocabulary encodes plain text so that no text, whatever it contains, becomes a control token:
markers such as `<|user|>` or `</s>` are made unreachable for the encoder and are found by
`control_ids` alone. Decoding is exact, byte by byte, so that a stream of tokens never splits a
character.
"""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from flashllm.errors import ModelError
from flashllm.tokenizer.files import guarded, read_json, read_limited
from flashllm.tokenizer.sentencepiece_model import SentencePieceVocabulary
from flashllm.tokenizer.tokenizer_json import (
    AddedToken,
    ByteSpelling,
    check_added,
    describe_byte_level,
    is_marker,
    looks_like_marker,
    protect_special_tokens,
    rename_piece,
    template_prefix,
    vocabulary_ids,
)

if TYPE_CHECKING:
    import tokenizers

    from flashllm.tokenizer.settings import TokenizerSettings


class Vocabulary(Protocol):
    """What a tokenizer needs of a set of pieces."""

    size: int
    control_ids: dict[str, int]
    """Markers that a template may use, and that no text encodes to."""
    prefix_ids: tuple[int, ...]
    """Ids that belong before every text, as far as the files say."""
    strips_leading_space: bool

    def encode(self, parts: Sequence[str | int]) -> list[int]:
        """Ids of stretches of text and of the control tokens between them."""

    def piece_bytes(self, token: int) -> bytes:
        """UTF-8 bytes, possibly of a part of a character, that a token stands for."""


class JsonVocabulary:
    """A `tokenizer.json` for the tokenizers library; its parsed content is used up here.

    Text and markers reach the library as one string, in which markers have names that nobody can
    guess, so its rules around added tokens apply as usual.
    """

    def __init__(self, path: Path, description: dict[str, Any], template: str) -> None:
        check_added(description)
        self._spelling = ByteSpelling(description, frozenset(_added_ids(description).values()))
        _add_hidden_markers(description, self._spelling, template)
        added = _added_ids(description)
        self.control_ids = {
            str(entry["content"]): int(entry["id"])
            for entry in description["added_tokens"]
            if is_marker(entry["content"], bool(entry.get("special")), template)
        }
        self.prefix_ids = template_prefix(description.get("post_processor"), added)
        self.strips_leading_space = self._spelling.strips_leading_space
        self._contents = {token: content for content, token in added.items()}
        ids = vocabulary_ids(description)
        self.size = max(itertools.chain(ids.values(), self._contents)) + 1
        if max(ids.values(), default=-1) + 1 == len(ids):
            ids = {}  # the library's numbers for added tokens come behind them
        self._path = path
        secret = secrets.token_hex(16)
        names = {c: f"\ue000{secret}.{token}\ue001" for c, token in self.control_ids.items()}
        self._names = {token: names[content] for content, token in self.control_ids.items()}
        unknown = protect_special_tokens(description, names)
        self._guarded = frozenset(self._names) - {unknown}
        text = _library_text(description)
        description.clear()  # large, and the library makes copies of its own while it reads
        self._tokenizer = _read_by_library(text)
        # The library numbers added tokens consecutively, whatever the file says.
        found = {self._tokenizer.token_to_id(names.get(c, c)): token for c, token in added.items()}
        self._moved = {own: token for own, token in found.items() if own != token}
        if self._moved:  # its numbers for them may be those of pieces
            pieces = {token: piece for piece, token in ids.items() if token in self._moved}
            self._contents = pieces | self._contents

    def encode(self, parts: Sequence[str | int]) -> list[int]:
        """Ids of stretches of text and of the control tokens between them.

        The result is checked for control tokens that got in another way.
        """
        text = "".join([p if isinstance(p, str) else self._names[p] for p in parts])
        ids: list[int] = guarded(
            self._path,
            lambda: self._tokenizer.encode(text, add_special_tokens=False).ids,
            "encode this text",
        )
        if self._moved:
            ids = [self._moved.get(token, token) for token in ids]
        wanted = [part for part in parts if part in self._guarded]
        if [token for token in ids if token in self._guarded] != wanted:
            raise ModelError(f"{self._path}: its rules turn plain text into control tokens")
        return ids

    def piece_bytes(self, token: int) -> bytes:
        """Bytes of a piece, in the spelling of this vocabulary."""
        piece = self._contents.get(token)
        if piece is None and token not in self._moved:
            piece = self._tokenizer.id_to_token(token) if 0 <= token < self.size else None
        return b"" if piece is None else self._spelling.decode(token, piece)


def load_sentencepiece(path: Path, settings: TokenizerSettings) -> SentencePieceVocabulary:
    """The vocabulary in a `tokenizer.model`."""
    content = read_limited(path)
    specials = (*settings.tokens.values(), *settings.specials)
    return guarded(
        path,
        lambda: SentencePieceVocabulary(
            content, settings.added, specials, settings.template, settings.legacy
        ),
    )


def load_json(path: Path, settings: TokenizerSettings) -> JsonVocabulary:
    """The vocabulary in a `tokenizer.json`."""
    description = read_json(path)
    return guarded(path, lambda: _json_vocabulary(path, description, settings))


def load_byte_level(vocab: Path, merges: Path, settings: TokenizerSettings) -> JsonVocabulary:
    """The vocabulary in a GPT-2 style `vocab.json` and `merges.txt`."""
    pieces = read_json(vocab)
    rules = read_limited(merges)
    return guarded(
        vocab,
        lambda: _json_vocabulary(vocab, describe_byte_level(pieces, rules.decode()), settings),
    )


def _json_vocabulary(
    path: Path, description: dict[str, Any], settings: TokenizerSettings
) -> JsonVocabulary:
    """The vocabulary, with special tokens that only the settings name added."""
    entries = [dict(entry) for entry in description.get("added_tokens") or ()]
    named = {entry["content"] for entry in entries}
    taken = {entry["id"] for entry in entries}
    ids = vocabulary_ids(description)
    for token, added in settings.added.items():
        own = ids.get(added.content, token)
        if added.content not in named and own not in taken:
            entries.append(added.entry(own))
            named.add(added.content)
            taken.add(own)
    for content in (*settings.tokens.values(), *settings.specials):
        if content in ids and content not in named:
            entries.append(AddedToken(content).entry(ids[content]))
            named.add(content)
    description["added_tokens"] = entries
    return JsonVocabulary(path, description, settings.template)


def _added_ids(description: Mapping[str, Any]) -> dict[str, int]:
    return {entry["content"]: entry["id"] for entry in description["added_tokens"]}


def _add_hidden_markers(description: dict[str, Any], spelling: ByteSpelling, template: str) -> None:
    """Adds ordinary pieces that are markers and that text could reach to the added tokens."""
    named = _added_ids(description)
    suspects = {}
    for piece, token in vocabulary_ids(description).items():
        if piece[:1] in ("<", "[") and piece not in named:
            content = spelling.decode(token, piece).decode("utf-8", "replace")
            if looks_like_marker(content, template):
                suspects[piece] = token, content
    if not suspects:
        return
    tokenizer = _read_by_library(_library_text(description))
    for piece, (token, content) in suspects.items():
        texts = (content, f"a{content}a", f" {content} ", f"\n{content}\n")
        if any(token in tokenizer.encode(text, add_special_tokens=False).ids for text in texts):
            rename_piece(description, piece, content)
            description["added_tokens"].append(AddedToken(content).entry(token))


def _library_text(description: dict[str, Any]) -> str:
    """What the tokenizers library reads, with the rules that encode and nothing else."""
    model = description["model"]
    if model.get("dropout") is not None:  # chance belongs to training
        model = {**model, "dropout": None}
    plain = {
        **description,
        "model": model,
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
    return json.dumps(plain)


def _read_by_library(text: str) -> tokenizers.Tokenizer:
    import tokenizers

    return tokenizers.Tokenizer.from_str(text)
