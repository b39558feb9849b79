"""Small tokenizers of every kind that knows all the markers of the templates, as files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from tests.support.chat_templates import (
    EDGES,
    MARKERS,
    OTHER_MARKERS,
    SPECIAL_MARKERS,
    STRIPPING_MARKERS,
)

SENTENCES = [
    "What does ocean mean? An ocean is a large body of water.",
    "user assistant system model start end im header id eot INST SYS AI User Assistant Falcon",
    "Grüße aus Köln, naïve café, <b>tags</b> | [x] and code: x == y; {% for %} {{ it }}",
    "用户 你好，世界。 0123456789 <|a|> <b_c> [/D] >>E<< extra_of_turn",
] * 20


def write_json(directory: Path, name: str, value: object) -> None:
    (directory / name).write_text(json.dumps(value), encoding="utf-8")


def write_config(directory: Path, template: str | None, **more: Any) -> None:
    config = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "add_bos_token": True,
        "chat_template": template,
        **more,
    }
    write_json(directory, "tokenizer_config.json", config)


def _add_markers(tokenizer: tokenizers.Tokenizer, words: tuple[str, ...] = ()) -> None:
    tokenizer.add_special_tokens([*EDGES, *SPECIAL_MARKERS])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    tokenizer.add_special_tokens(
        [AddedToken(marker, rstrip=True, normalized=False) for marker in STRIPPING_MARKERS]
    )
    # A space put in front of the text would be looked for in front of the marker as well.
    prepends = type(tokenizer.normalizer) is normalizers.Sequence
    tokenizer.add_tokens([AddedToken(m, normalized=not prepends) for m in OTHER_MARKERS])
    tokenizer.add_tokens(list(words))


def _trained(
    model: Any, vocab_size: int = 500, specials: tuple[str, ...] = (), **parts: Any
) -> tokenizers.Tokenizer:
    """A tokenizer whose special pieces are ordinary ones, as bytes are."""
    tokenizer = tokenizers.Tokenizer(model)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if not specials else [],
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    description = json.loads(tokenizer.to_str())
    description["added_tokens"] = []
    return tokenizers.Tokenizer.from_str(json.dumps(description))


_BYTES = ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)))
_FALLBACK: dict[str, Any] = {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}


def make_byte_level(directory: Path) -> None:
    tokenizer = _trained(
        models.BPE(),
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoder=decoders.ByteLevel(),
    )
    _add_markers(tokenizer, ("    ", "7"))
    tokenizer.save(str(directory / "tokenizer.json"))


CHANNEL_MARKERS = (
    "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>",
    "<|endoftext|>",
)  # fmt: skip


def make_channels(directory: Path, template: str) -> None:
    """The control tokens of channels, and in generation_config.json some that end an answer."""
    tokenizer = _trained(
        models.BPE(),
        vocab_size=600,
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoder=decoders.ByteLevel(),
    )
    tokenizer.add_special_tokens(list(CHANNEL_MARKERS))
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"eos_token": "<|return|>", "chat_template": template}
    write_json(directory, "tokenizer_config.json", config)
    ids = [tokenizer.token_to_id(marker) for marker in ("<|return|>", "<|endoftext|>")]
    write_json(directory, "generation_config.json", {"eos_token_id": ids})


def make_byte_level_nfkc(directory: Path) -> None:
    tokenizer = _trained(
        models.BPE(),
        normalizer=normalizers.NFKC(),
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True),
        decoder=decoders.ByteLevel(),
    )
    _add_markers(tokenizer, ("    ", "7"))
    tokenizer.save(str(directory / "tokenizer.json"))


def make_prepended(directory: Path) -> None:
    """sentencepiece as its older conversion has it: a space in front of every stretch."""
    tokenizer = _trained(
        models.BPE(**_FALLBACK),
        specials=_BYTES,
        normalizer=normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        ),
        decoder=decoders.Sequence(
            [
                decoders.Replace("\u2581", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        ),
    )
    _add_markers(tokenizer)
    tokenizer.save(str(directory / "tokenizer.json"))


def make_prepended_first(directory: Path) -> None:
    """sentencepiece as its newer conversion has it: a space in front of the first stretch."""
    tokenizer = _trained(
        models.BPE(**_FALLBACK),
        specials=_BYTES,
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
        decoder=decoders.Sequence(
            [
                decoders.Replace("\u2581", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        ),
    )
    _add_markers(tokenizer)
    tokenizer.save(str(directory / "tokenizer.json"))


def make_unigram(directory: Path) -> None:
    # Every marker is an ordinary, likely piece here: the rules alone would find it in a text.
    letters = sorted({character for line in SENTENCES for character in line.replace(" ", "\u2581")})
    vocab = [("<unk>", 0.0), *((piece, -1.0) for piece in MARKERS if piece != "<unk>")]
    vocab += [("    ", -2.0), ("7", -3.0)]
    vocab += [(letter, -5.0) for letter in letters if letter != "7"]
    tokenizer = tokenizers.Tokenizer(models.Unigram(vocab, 0, False))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    _add_markers(tokenizer, ("    ", "7"))
    tokenizer.save(str(directory / "tokenizer.json"))


def make_vocab_and_merges(directory: Path) -> None:
    tokenizer = _trained(
        models.BPE(),
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False),
    )
    model = json.loads(tokenizer.to_str())["model"]
    first = len(model["vocab"])
    write_json(directory, "vocab.json", model["vocab"])
    merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
    (directory / "merges.txt").write_text("#version: 0.2\n" + merges, encoding="utf-8")
    write_json(
        directory, "added_tokens.json", {marker: first + i for i, marker in enumerate(MARKERS)}
    )


def make_sentencepiece(directory: Path, **options: Any) -> None:
    with (directory / "tokenizer.model").open("wb") as stream:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(SENTENCES),
            model_writer=stream,
            **{
                "vocab_size": 500,
                "byte_fallback": True,
                "hard_vocab_limit": False,
                "pad_id": 3,
                "minloglevel": 2,
                **options,
            },
        )


def make_sentencepiece_bpe(directory: Path) -> None:
    """Markers behind the model, as most have them."""
    make_sentencepiece(
        directory,
        model_type="bpe",
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        vocab_size=420,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
    markers = [marker for marker in MARKERS if marker not in EDGES]
    added = {marker: processor.vocab_size() + i for i, marker in enumerate(markers)}
    write_json(directory, "added_tokens.json", added)


def make_sentencepiece_unigram(directory: Path) -> None:
    """Markers inside the model, some of them matched in any text, and text is normalised."""
    make_sentencepiece(
        directory,
        normalization_rule_name="nmt_nfkc",
        control_symbols=list(SPECIAL_MARKERS),
        user_defined_symbols=[*OTHER_MARKERS, *STRIPPING_MARKERS, "<mask>", "7"],
    )


MAKERS: dict[str, Callable[[Path], None]] = {
    "byte-level": make_byte_level,
    "byte-level-nfkc": make_byte_level_nfkc,
    "prepended": make_prepended,
    "prepended-first": make_prepended_first,
    "unigram": make_unigram,
    "vocab-and-merges": make_vocab_and_merges,
    "sentencepiece-bpe": make_sentencepiece_bpe,
    "sentencepiece-unigram": make_sentencepiece_unigram,
}
LOSSLESS = ("byte-level", "prepended", "prepended-first", "vocab-and-merges", "sentencepiece-bpe")
"""Kinds whose ids spell a text exactly as it was."""
