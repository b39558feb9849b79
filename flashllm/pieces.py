"""What tokenizer files say about single pieces: markers to hide, prefixes to add, bytes to spell.

Everything here takes a stranger's data; a shape that is not expected raises `ValueError`,
`KeyError` or their like, which the vocabulary's loader turns into a `ModelError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flashllm.errors import UnsupportedModel

# sentencepiece_model.proto: ModelProto.pieces, SentencePiece.piece and .type
_PIECES_FIELD, _PIECE_FIELD, _TYPE_FIELD = 1, 1, 3
_CONTROL, _USER_DEFINED = 3, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def hide_user_symbols(model: bytes, hidden: Callable[[str], bool]) -> bytes:
    """A sentencepiece model whose user-defined pieces are control pieces where `hidden` says so.

    The library matches user-defined pieces in any text; control pieces never. The type is one byte,
    so it is changed in place.
    """
    changed = bytearray(model)
    for field, start, end in _fields(model, 0, len(model)):
        if field != _PIECES_FIELD:
            continue
        piece, type_at = "", -1
        for inner, inner_start, inner_end in _fields(model, start, end):
            if inner == _PIECE_FIELD:
                piece = model[inner_start:inner_end].decode("utf-8", "replace")
            elif inner == _TYPE_FIELD:
                type_at = inner_start
        if type_at >= 0 and model[type_at] == _USER_DEFINED and hidden(piece):
            changed[type_at] = _CONTROL
    return bytes(changed)


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


def seclude_markers(
    description: dict[str, Any], markers: Mapping[str, int], secret: str
) -> int | None:
    """Renames markers in a `tokenizer.json`, in place, to names that nobody can write; ids stay.

    The library matches added tokens in any text, and a marker that is in the model's own vocabulary
    may be reached by its rules as well. Returns the id that stands for unknown pieces, if any.
    """
    names = {content: f"{secret}{token}" for content, token in markers.items()}
    for entry in description.get("added_tokens") or ():
        entry["content"] = names.get(entry["content"], entry["content"])
    model = description["model"]
    vocab = model["vocab"]
    if isinstance(vocab, list):  # Unigram: pairs of piece and score, the id being the index
        unknown = model.get("unk_id")
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
        return unknown if isinstance(unknown, int) else None
    unknown = vocab.get(model.get("unk_token"))
    model["vocab"] = {names.get(piece, piece): token for piece, token in vocab.items()}
    if "unk_token" in model:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        pairs = (rule.split(" ", 1) if isinstance(rule, str) else rule for rule in model["merges"])
        model["merges"] = [
            pair for pair in pairs if names.keys().isdisjoint((*pair, "".join(pair)))
        ]
    return unknown if isinstance(unknown, int) else None


def template_prefix(post_processor: object, tokens: Mapping[str, int]) -> tuple[int, ...]:
    """Ids that a post-processor puts in front of a single text."""
    if not isinstance(post_processor, dict):
        return ()
    if post_processor.get("type") == "Sequence":
        parts = (template_prefix(part, tokens) for part in post_processor.get("processors") or ())
        return next((prefix for prefix in parts if prefix), ())
    if post_processor.get("type") in ("RobertaProcessing", "BertProcessing"):
        return (int(post_processor["cls"][1]),)
    prefix: list[int] = []
    for part in post_processor.get("single") or ():
        if "SpecialToken" not in part:
            break
        prefix.append(tokens[part["SpecialToken"]["id"]])
    return tuple(prefix)


def describe_byte_level(vocab: dict[str, int], merges: str) -> dict[str, Any]:
    """The `tokenizer.json` that a GPT-2 style `vocab.json` and `merges.txt` amount to."""
    lines = [line for line in merges.splitlines() if line and not line.startswith("#version")]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": lines},
    }


class ByteSpelling:
    """How pieces of a `tokenizer.json` spell bytes: GPT-2's alphabet, or spaces and `<0xNN>`."""

    def __init__(self, description: Mapping[str, Any], added: frozenset[int]) -> None:
        decoders = list(_flatten(description.get("decoder")))
        kinds = [str(decoder.get("type")) for decoder in decoders]
        self._added = added
        self._byte_level = _gpt2_alphabet() if "ByteLevel" in kinds else None
        self._space = "\u2581"
        self.strips_leading_space = False
        known = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}
        if self._byte_level is None and (not kinds or not known.issuperset(kinds)):
            raise UnsupportedModel(
                f"tokenizer.json: decoder {'+'.join(kinds) or 'none'} is not supported; "
                "the model runs by token ids (--ids)"
            )
        for decoder in decoders:
            if decoder.get("type") == "Metaspace":
                self._space = str(decoder.get("replacement", self._space))
                self.strips_leading_space = decoder.get("prepend_scheme") != "never"
            elif decoder.get("type") == "Strip" and decoder.get("content") == " ":
                self.strips_leading_space = bool(decoder.get("start"))

    def decode(self, token: int, piece: str) -> bytes:
        """The bytes of one piece."""
        if self._byte_level is not None:
            alphabet = self._byte_level
            if token in self._added or not alphabet.keys() >= set(piece):
                return piece.encode("utf-8", "replace")
            return bytes([alphabet[character] for character in piece])
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            try:
                return bytes([int(piece[3:5], 16)])
            except ValueError:
                pass
        return piece.replace(self._space, " ").encode("utf-8", "replace")


def _flatten(decoder: object) -> Iterator[Mapping[str, Any]]:
    if not isinstance(decoder, dict):
        return
    if decoder.get("type") == "Sequence":
        for part in decoder.get("decoders") or ():
            yield from _flatten(part)
    else:
        yield decoder


def _gpt2_alphabet() -> dict[str, int]:
    """Characters that stand for bytes: printable ones for themselves, the rest from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet
