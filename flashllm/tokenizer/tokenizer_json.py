"""The pieces of a `tokenizer.json`: special tokens to protect, prefixes to add, bytes to spell.

Everything here takes a stranger's data; an unexpected shape raises `ValueError`, `KeyError` or
their like, which the vocabulary's loader turns into a `ModelError`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from flashllm.errors import UnsupportedModel

ID_MAX = (1 << 23) - 1
"""The largest id that a vocabulary may have; no real one comes near."""
SPACE = "\u2581"
"""How sentencepiece writes a space."""
# Ordinary pieces that no text has by chance, and those that look like markers where a template
# writes them.
_SURE_MARKER = re.compile(r"<\|[^<>|\s]+\|>")
_MARKER_SHAPE = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]{2,}\]")


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is matched whole; flags include white space on its left and right."""

    content: str
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False

    def entry(self, token: int) -> dict[str, Any]:
        """Its entry in a `tokenizer.json`."""
        return {
            "id": token,
            "content": self.content,
            "single_word": False,
            "lstrip": self.lstrip,
            "rstrip": self.rstrip,
            "normalized": False,
            "special": self.special,
        }


def is_marker(content: str, special: bool, template: str) -> bool:
    """Whether an added token directs the model rather than being a stretch of text.

    Files flag only some markers as special, so those in the chat template and those with a symbol
    in them count too. Runs of white space, digits and words that a vocabulary adds are text.
    """
    text = content.replace(SPACE, " ")
    if not text.strip():
        return False
    has_symbol = any(not character.isalnum() and not character.isspace() for character in text)
    return special or (len(text) > 1 and content in template) or (has_symbol and len(text) > 2)


def looks_like_marker(piece: str, template: str) -> bool:
    """Whether an ordinary piece that text can reach is nevertheless a marker."""
    if _SURE_MARKER.fullmatch(piece):
        return True
    return bool(_MARKER_SHAPE.fullmatch(piece)) and piece in template


def vocabulary_ids(description: Mapping[str, Any]) -> dict[str, int]:
    """Pieces of the model in a `tokenizer.json` and their ids; `ValueError` if two share one."""
    vocab = description["model"]["vocab"]
    if isinstance(vocab, list):  # Unigram: pairs of piece and score, the id being the index
        ids = {str(piece): token for token, (piece, _) in enumerate(vocab)}
    else:
        ids = dict(vocab)
    if _are_ids(ids.values()):
        return ids
    owners: dict[int, str] = {}
    for piece, token in ids.items():
        if type(token) is not int or not 0 <= token <= ID_MAX:
            raise ValueError(f"piece {piece!r} has the id {str(token)[:40]}")
        if owners.setdefault(token, piece) != piece:
            raise ValueError(f"pieces {owners[token]!r} and {piece!r} share the id {token}")
    return ids


def _are_ids(tokens: Collection[object]) -> bool:
    """Whether all are valid ids, and none comes twice: looked at together, since they are many."""
    distinct = set(tokens)
    if len(distinct) < len(tokens) or set(map(type, distinct)) != {int}:
        return False
    numbers = cast("set[int]", distinct)
    return min(numbers) >= 0 and max(numbers) <= ID_MAX


def check_added(description: dict[str, Any]) -> None:
    """Gives added tokens their ids, in place; pieces of the vocabulary with these ids are renamed.

    `ValueError` if two of them share an id or a name.
    """
    ids = vocabulary_ids(description)
    owners = {token: piece for piece, token in ids.items()}
    seen: dict[int, str] = {}
    for entry in description["added_tokens"]:
        token, content = entry["id"], entry["content"]
        if type(token) is not int or not 0 <= token <= ID_MAX or not isinstance(content, str):
            raise ValueError(f"added token {str(content)[:40]!r} has the id {str(token)[:40]}")
        if token in seen or content in seen.values():
            raise ValueError(f"added token {content!r}: its id {token} or its name occurs twice")
        seen[token] = content
        if content in ids and ids[content] != token:
            raise ValueError(f"added token {content!r} has the ids {ids[content]} and {token}")
        if owners.get(token, content) != content:
            _rename(description["model"], {owners[token]: content})
    if not ids and not seen:
        raise ValueError("it has no pieces")


def protect_special_tokens(description: dict[str, Any], names: Mapping[str, str]) -> int | None:
    """Gives markers names that nobody can write, in place; ids stay.

    The library matches added tokens in any text, and a marker that is in the model's own vocabulary
    may be reached by its rules as well. By its new name a marker is always found, whatever is next
    to it. Returns the id that stands for unknown pieces, if any.
    """
    for entry in description["added_tokens"]:
        if entry["content"] in names:
            entry |= {
                "content": names[entry["content"]],
                "normalized": False,
                "single_word": False,
            }
    model = description["model"]
    if isinstance(model["vocab"], list):
        unknown = model.get("unk_id")
    else:
        unknown = model["vocab"].get(model.get("unk_token"))
    _rename(model, names)
    return unknown if isinstance(unknown, int) else None


def rename_piece(description: dict[str, Any], piece: str, name: str) -> None:
    """Renames one piece of the model in a `tokenizer.json`, in place."""
    if piece != name:
        _rename(description["model"], {piece: name})


def _rename(model: dict[str, Any], names: Mapping[str, str]) -> None:
    """Renames pieces of a model, and removes rules that lead to them."""
    vocab = model["vocab"]
    if isinstance(vocab, list):
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
        return
    if "unk_token" in model:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if names.keys().isdisjoint(vocab):
        return  # rules lead to pieces of the vocabulary alone
    model["vocab"] = {names.get(piece, piece): token for piece, token in vocab.items()}
    if "merges" in model:
        pairs = (rule.split(" ", 1) if isinstance(rule, str) else rule for rule in model["merges"])
        model["merges"] = [
            pair for pair in pairs if names.keys().isdisjoint((*pair, "".join(pair)))
        ]


def template_prefix(post_processor: object, tokens: Mapping[str, int]) -> tuple[int, ...]:
    """Ids that a post-processor puts before a single text."""
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
    """The `tokenizer.json` that is equivalent to a GPT-2 style `vocab.json` and `merges.txt`."""
    lines = [line for line in merges.splitlines() if line and not line.startswith("#version")]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "added_tokens": [],
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
        self._space = SPACE
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
            elif decoder.get("type") == "Replace":
                if decoder.get("content") != " ":
                    raise UnsupportedModel("tokenizer.json: a decoder that replaces is unknown")
                self._space = str(decoder["pattern"]["String"])
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
