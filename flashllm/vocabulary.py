"""Pieces of text and their ids, as the tokenizer files of a model describe them.

A vocabulary encodes plain text so that no text, whatever it says, becomes a control token:
markers such as `<|user|>` or `</s>` are made unreachable for the encoder and are found by
`control_ids` alone.
Decoding is exact, byte by byte, so that a stream of tokens never splits a character.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from flashllm.errors import ModelError
from flashllm.pieces import (
    ByteSpelling,
    describe_byte_level,
    hide_user_symbols,
    seclude_markers,
    template_prefix,
)

if TYPE_CHECKING:
    import tokenizers

    from flashllm.tokenizer_settings import TokenizerSettings

FILE_BYTES_MAX = 64 << 20
_SPACE = "\u2581"  # how sentencepiece writes a space
_Loaded = TypeVar("_Loaded")


class Vocabulary(Protocol):
    """What a tokenizer needs of a set of pieces."""

    size: int
    control_ids: dict[str, int]
    """Markers that a template may use, and that no text encodes to."""
    prefix_ids: tuple[int, ...]
    """Ids that belong in front of every text, as far as the files say."""
    strips_leading_space: bool

    def encode(self, text: str) -> list[int]:
        """Ids of plain text."""

    def piece_bytes(self, token: int) -> bytes:
        """UTF-8 bytes, possibly of a part of a character, that a token stands for."""


def is_marker(content: str, special: bool, template: str) -> bool:
    """Whether an added token directs the model rather than being a stretch of text.

    Files flag only some markers as special, so those in the chat template and those with a symbol
    in them count too. Runs of white space, digits and words that a vocabulary adds are text.
    """
    text = content.replace(_SPACE, " ")
    if not text.strip():
        return False
    has_symbol = any(not character.isalnum() and not character.isspace() for character in text)
    return special or (len(text) > 1 and content in template) or (has_symbol and len(text) > 2)


def read_limited(path: Path) -> bytes:
    """The bytes of a tokenizer file; `ModelError` beyond the size that any real one has."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ModelError(f"{path}: larger than {FILE_BYTES_MAX >> 20} MiB; is it a tokenizer?")
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; `ModelError` for anything else."""
    try:
        value = json.loads(read_limited(path))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object")
    return value


def load_guarded(path: Path, load: Callable[[], _Loaded]) -> _Loaded:
    """Runs a library's loader on a stranger's file; whatever it dislikes becomes a `ModelError`."""
    try:
        return load()
    except (KeyboardInterrupt, SystemExit, ModelError):
        raise
    except BaseException as error:  # a panic in Rust is no Exception
        raise ModelError(f"{path}: cannot be loaded as a tokenizer ({error})") from error


class SentencePieceVocabulary:
    """A sentencepiece model; `added` are ids that other files put behind it."""

    def __init__(self, content: bytes, added: Mapping[int, str], template: str) -> None:
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor()
        processor.LoadFromSerializedProto(
            hide_user_symbols(content, lambda piece: is_marker(piece, False, template))
        )
        self._processor = processor
        pieces = processor.vocab_size()
        self._added = {token: spelling for token, spelling in added.items() if token >= pieces}
        self.size = max([pieces, *(token + 1 for token in self._added)])
        self.control_ids = {
            processor.id_to_piece(token): token
            for token in range(pieces)
            if processor.is_control(token) or processor.is_unknown(token)
        }
        self.control_ids.update({spelling: token for token, spelling in self._added.items()})
        first = processor.encode("a", out_type=str)
        self.strips_leading_space = bool(first) and first[0].startswith(_SPACE)
        self.prefix_ids: tuple[int, ...] = (processor.bos_id(),) if processor.bos_id() >= 0 else ()
        ids = {
            "bos_token": processor.bos_id(),
            "eos_token": processor.eos_id(),
            "pad_token": processor.pad_id(),
        }
        self.tokens = {
            name: processor.id_to_piece(token) for name, token in ids.items() if token >= 0
        }
        for token in range(self.size):
            self.piece_bytes(token)  # raises here, while loading, what would be raised later

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; control pieces are not parsed by the library."""
        return [int(token) for token in self._processor.encode(text)]

    def piece_bytes(self, token: int) -> bytes:
        """Bytes of a piece, `\u2581` being a space."""
        if token in self._added:
            return self._added[token].encode()
        if not 0 <= token < self._processor.vocab_size():
            return b""
        piece = self._processor.id_to_piece(token)
        if self._processor.is_byte(token):
            return bytes([int(piece[3:5], 16)])
        if self._processor.is_unknown(token):
            return " \u2047 ".encode()
        return str(piece).replace(_SPACE, " ").encode()


class JsonVocabulary:
    """A `tokenizer.json` for the tokenizers library; its parsed content is changed here."""

    def __init__(self, path: Path, description: dict[str, Any], template: str) -> None:
        entries = [dict(entry) for entry in description.get("added_tokens") or ()]
        added = {str(entry["content"]): int(entry["id"]) for entry in entries}
        self.control_ids = {
            content: token
            for (content, token), entry in zip(added.items(), entries, strict=True)
            if is_marker(content, bool(entry.get("special")), template)
        }
        self.prefix_ids = template_prefix(description.get("post_processor"), added)
        self._spelling = ByteSpelling(description, frozenset(added.values()))
        self.strips_leading_space = self._spelling.strips_leading_space
        secret = f"\ue000{secrets.token_hex(16)}\ue001"
        unknown = seclude_markers(description, self.control_ids, secret)
        self._forbidden = frozenset(self.control_ids.values()) - {unknown}
        self._tokenizer = _build(description)
        pieces = self._tokenizer.get_vocab(with_added_tokens=True)
        self._pieces = {token: piece for piece, token in pieces.items()}
        self._pieces.update({token: content for content, token in added.items()})
        self._path = path
        self.size = max(self._pieces, default=-1) + 1

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, checked for markers that found another way in."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if not self._forbidden.isdisjoint(ids):
            raise ModelError(f"{self._path}: its rules turn plain text into control tokens")
        return ids

    def piece_bytes(self, token: int) -> bytes:
        """Bytes of a piece, in the spelling of this vocabulary."""
        piece = self._pieces.get(token)
        return b"" if piece is None else self._spelling.decode(token, piece)


def load_sentencepiece(path: Path, settings: TokenizerSettings) -> SentencePieceVocabulary:
    """The vocabulary in a `tokenizer.model`."""
    content = read_limited(path)
    return load_guarded(
        path, lambda: SentencePieceVocabulary(content, settings.added, settings.template)
    )


def load_json(path: Path, settings: TokenizerSettings) -> JsonVocabulary:
    """The vocabulary in a `tokenizer.json`."""
    description = read_json(path)
    return load_guarded(path, lambda: _json_vocabulary(path, description, settings))


def load_byte_level(vocab: Path, merges: Path, settings: TokenizerSettings) -> JsonVocabulary:
    """The vocabulary that a GPT-2 style `vocab.json` and `merges.txt` amount to."""
    pieces = read_json(vocab)
    rules = read_limited(merges)
    return load_guarded(
        vocab,
        lambda: _json_vocabulary(vocab, describe_byte_level(pieces, rules.decode()), settings),
    )


def _json_vocabulary(
    path: Path, description: dict[str, Any], settings: TokenizerSettings
) -> JsonVocabulary:
    """Special tokens that only the settings name are added as such."""
    entries = description.setdefault("added_tokens", [])
    named = {entry["content"] for entry in entries}
    vocab = description["model"]["vocab"]
    ids = (
        vocab
        if isinstance(vocab, dict)
        else {piece: token for token, (piece, _) in enumerate(vocab)}
    )
    flags = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    for content in (*settings.tokens.values(), *settings.added.values()):
        if content in ids and content not in named:
            named.add(content)
            entries.append({"id": ids[content], "content": content, **flags})
    return JsonVocabulary(path, description, settings.template)


def _build(description: dict[str, Any]) -> tokenizers.Tokenizer:
    import tokenizers

    plain = {**description, "post_processor": None, "truncation": None, "padding": None}
    return tokenizers.Tokenizer.from_str(json.dumps(plain))
