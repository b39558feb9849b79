"""A sentencepiece model, `tokenizer.model`, whose markers no text reaches.

A stranger's file: what is wrong with it raises `ValueError` or its like, which the vocabulary's
loader turns into a `ModelError`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashllm.tokenizer.tokenizer_json import (
    ID_MAX,
    SPACE,
    AddedToken,
    is_marker,
    looks_like_marker,
)

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

# sentencepiece_model.proto: ModelProto.pieces and .normalizer_spec, SentencePiece.piece and .type,
# NormalizerSpec.add_dummy_prefix
_PIECES_FIELD, _NORMALIZER_FIELD, _PIECE_FIELD, _TYPE_FIELD, _PREFIX_FIELD = 1, 3, 1, 3, 3
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Behind a model, this overrules what the model says of a space in front of a text.
_WITHOUT_PREFIX = bytes([_NORMALIZER_FIELD << 3 | _BYTES, 2, _PREFIX_FIELD << 3 | _VARINT, 0])


class SentencePieceVocabulary:
    """A sentencepiece model, with tokens, by id, that other files add or rename.

    `specials` are spellings of pieces that are markers, whatever the model says. `legacy` models
    learned a space before every text between markers, others only before the first.
    """

    def __init__(
        self,
        model: bytes,
        added: Mapping[int, AddedToken],
        specials: Iterable[str],
        template: str,
        legacy: bool,
    ) -> None:
        entries = list(_entries(model))
        self._added = {
            token: entry
            for token, entry in added.items()
            if token >= len(entries) or is_marker(entry.content, entry.special, template)
        }
        _check(entries, self._added)
        names = {*specials, *(entry.content for entry in self._added.values())}
        hidden = _hidden(model, entries, self._added, names, template)
        changed = _retyped(model, entries, hidden)
        self._processor = _processor(changed)
        if not all(self._processor.is_control(token) for token in hidden):
            raise ValueError("its markers cannot be told from its text")
        self._later = self._processor if legacy else _processor(changed + _WITHOUT_PREFIX)
        self._bytes = [_spelled(entry) for entry in entries]
        self.size = max([len(entries), *(token + 1 for token in self._added)])
        controls = {t for t, entry in enumerate(entries) if entry.type in (_CONTROL, _UNKNOWN)}
        self.control_ids = {
            entries[token].piece: token for token in sorted((controls | hidden) - set(self._added))
        }
        self.control_ids.update({entry.content: token for token, entry in self._added.items()})
        self._set_edges()

    def _set_edges(self) -> None:
        """Sets the ids at the beginning and the end of a text."""
        processor = self._processor
        first = processor.encode("a", out_type=str)
        self.strips_leading_space = bool(first) and first[0].startswith(SPACE)
        self.prefix_ids: tuple[int, ...] = (processor.bos_id(),) if processor.bos_id() >= 0 else ()
        ids = {
            "bos_token": processor.bos_id(),
            "eos_token": processor.eos_id(),
            "pad_token": processor.pad_id(),
        }
        self.tokens = {
            name: processor.id_to_piece(token) for name, token in ids.items() if token >= 0
        }

    def encode(self, parts: Sequence[str | int]) -> list[int]:
        """Ids of texts and of the control tokens between them."""
        ids: list[int] = []
        for number, part in enumerate(parts):
            if isinstance(part, int):
                ids.append(part)
                continue
            before = self._added.get(_id(parts, number - 1))
            after = self._added.get(_id(parts, number + 1))
            text = part.lstrip() if before is not None and before.rstrip else part
            text = text.rstrip() if after is not None and after.lstrip else text
            ids += (self._later if number else self._processor).encode(text)
        return ids

    def piece_bytes(self, token: int) -> bytes:
        """Bytes of a piece, `\u2581` being a space."""
        if token in self._added:
            return self._added[token].content.encode("utf-8", "replace")
        return self._bytes[token] if 0 <= token < len(self._bytes) else b""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One piece, and its place in the model: the whole field, and the byte of its type or 0."""

    piece: str
    type: int
    start: int
    end: int
    type_at: int


def _id(parts: Sequence[str | int], number: int) -> int:
    """The control token at a place, -1 if there is none."""
    part = parts[number] if 0 <= number < len(parts) else ""
    return part if isinstance(part, int) else -1


def _processor(model: bytes) -> SentencePieceProcessor:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    return processor


def _check(entries: Sequence[_Entry], added: Mapping[int, AddedToken]) -> None:
    if not entries:
        raise ValueError("it has no pieces")
    if max(added, default=0) > ID_MAX:
        raise ValueError(f"an added token has an id above {ID_MAX}")
    if len({entry.content for entry in added.values()}) < len(added):
        raise ValueError("an added token occurs with two ids")
    for token, entry in added.items():
        if token < len(entries) and entries[token].type == _BYTE:
            raise ValueError(f"added token {entry.content!r} has the id of a byte, {token}")


def _hidden(
    model: bytes,
    entries: Sequence[_Entry],
    added: Container[int],
    names: Container[str],
    template: str,
) -> set[int]:
    """Ids of pieces that text could reach and must not: markers by id, name, type or look."""
    hidden = set()
    suspects = []
    for token, entry in enumerate(entries):
        if entry.type == _USER_DEFINED and is_marker(entry.piece, False, template):
            hidden.add(token)
        elif entry.type in (_NORMAL, _USER_DEFINED):
            if token in added or entry.piece in names:
                hidden.add(token)
            elif looks_like_marker(entry.piece, template):
                suspects.append(token)
    if suspects:
        processor = _processor(model)
        hidden |= {
            token for token in suspects if token in processor.encode(f"a{entries[token].piece}")
        }
    return hidden


def _retyped(model: bytes, entries: Sequence[_Entry], hidden: Container[int]) -> bytes:
    """The model with `hidden` pieces as control pieces, which the library matches in no text."""
    parts = []
    position = 0
    for token, entry in enumerate(entries):
        if token not in hidden:
            continue
        if entry.type_at:
            parts += [model[position : entry.type_at], bytes([_CONTROL])]
            position = entry.type_at + 1
        else:  # a normal piece need not say so
            content = model[entry.start : entry.end] + bytes([_TYPE_FIELD << 3 | _VARINT, _CONTROL])
            length_at = entry.start - len(_varint_bytes(entry.end - entry.start))
            parts += [model[position:length_at], _varint_bytes(len(content)), content]
            position = entry.end
    return b"".join([*parts, model[position:]])


def _spelled(entry: _Entry) -> bytes:
    if entry.type == _BYTE:
        return bytes([int(entry.piece[3:5], 16)])
    if entry.type == _UNKNOWN:
        return " \u2047 ".encode()
    return entry.piece.replace(SPACE, " ").encode()


def _entries(model: bytes) -> Iterator[_Entry]:
    """The pieces of a model in the order of their ids."""
    for field, start, end in _fields(model, 0, len(model)):
        if field != _PIECES_FIELD:
            continue
        piece, kind, type_at = "", _NORMAL, 0
        for inner, inner_start, inner_end in _fields(model, start, end):
            if inner == _PIECE_FIELD:
                piece = model[inner_start:inner_end].decode()
            elif inner == _TYPE_FIELD:
                kind, type_at = _varint(model, inner_start)[0], inner_start
        yield _Entry(piece, kind, start, end, type_at)


def _fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of the value of each field of a protobuf message."""
    position = start
    while position < end:
        key, position = _varint(data, position)
        kind = key & 7
        value_start = position
        if kind == _VARINT:
            _, position = _varint(data, position)
        elif kind == _FIXED64:
            position += 8
        elif kind == _FIXED32:
            position += 4
        elif kind == _BYTES:
            length, value_start = _varint(data, position)
            position = value_start + length
        else:
            raise ValueError(f"unknown wire type {kind} at byte {position}")
        if position > end:
            raise ValueError(f"a field at byte {value_start} is longer than what holds it")
        yield key >> 3, value_start, position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError(f"a number at byte {position} is longer than 10 bytes")


def _varint_bytes(value: int) -> bytes:
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
