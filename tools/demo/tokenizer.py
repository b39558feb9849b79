"""Trains the tokenizer (`python -m tools.demo.tokenizer`) and encodes conversations with it.

`--like FOLDER` takes that of an exported model instead, so that two models have the same one.

They are encoded exactly as the chat template has it: template text becomes control ids, which no
user text can encode to, and every message content is encoded by itself: `[bos, user, *content,
assistant, *content, eos, user, ...]`.

What is encoded loses its capitals, so that Ocean, OCEAN and ocean are one word. Answers have them:
their pieces are in the vocabulary, and the model writes them although no text encodes to them.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import sentencepiece as sp

from .conversations import Conversation, Material, draw
from .corpus import load_material

TOKENIZER_FILES = (
    "tokenizer.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
VOCAB_SIZE = 8192  # pieces of text, controls, and 256 bytes to spell everything else
ANSWERS_MODEL = "answers.model"
"""The tokenizer that keeps capitals, which only the trainer has."""
KEEPS_CAPITALS, FOLDS_CAPITALS = "nfkc", "nmt_nfkc_cf"
LEXICON_TIMES = 12
"""How often each word of the lexicon stands alone in the text that the pieces are learned from."""
UNK, BOS, EOS, PAD, USER, ASSISTANT = range(6)
SPECIALS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
ROLES = {"user": "<|user|>", "assistant": "<|assistant|>"}
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '<|user|>' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}"
    "{{ '<|assistant|>' + message['content'] + eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def _sentences(material: Material, conversations: int, seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    for fact in material.facts:
        yield from [fact.word.lower()] * LEXICON_TIMES
    for index in range(conversations):
        for turn in draw(material, material.facts[index % len(material.facts)], rng):
            yield turn.question.casefold()
            yield turn.answer


def _characters_map(rule: str) -> bytes:
    """How sentencepiece's rule of that name changes characters, in its own compiled form.

    It is field 2 of NormalizerSpec (sentencepiece_model.proto), behind the name in field 1.
    """
    spec = sp.SentencePieceNormalizer(rule_name=rule).serialized_normalizer_spec()
    position = 2 + len(rule)
    assert spec[:1] == b"\n"
    assert spec[position : position + 1] == b"\x12"
    size, shift, position = 0, 0, position + 1
    while True:
        byte = spec[position]
        size |= (byte & 0x7F) << shift
        shift, position = shift + 7, position + 1
        if byte < 0x80:
            return spec[position : position + size]


def train_tokenizer(material: Material, folder: Path, conversations: int, seed: int) -> None:
    """Writes tokenizer.model, the JSON files beside it, and the trainer's own ANSWERS_MODEL."""
    folder.mkdir(parents=True, exist_ok=True)
    stream = io.BytesIO()
    sp.SentencePieceTrainer.train(
        sentence_iterator=_sentences(material, conversations, seed),
        model_writer=stream,
        model_type="unigram",
        vocab_size=VOCAB_SIZE,
        byte_fallback=True,
        character_coverage=0.9995,  # letters of other scripts are spelt in bytes
        normalization_rule_name=KEEPS_CAPITALS,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        pad_id=PAD,
        pad_piece="<pad>",
        control_symbols=list(ROLES.values()),
        num_threads=1,  # with more, the pieces' order depends on the threads
        minloglevel=2,
    )
    (folder / ANSWERS_MODEL).write_bytes(stream.getvalue())
    (folder / "tokenizer.model").write_bytes(stream.getvalue() + _folding_rule())
    write_tokenizer_config(folder)
    write_fast_tokenizer(folder)


def _folding_rule() -> bytes:
    """What makes of a tokenizer that keeps capitals one that folds them.

    In a protobuf message what comes later overrules what came before: here, the rule.
    """
    return bytes(sp.SentencePieceNormalizer(rule_name=FOLDS_CAPITALS).serialized_model_proto())


def take_tokenizer(model: Path, folder: Path) -> None:
    """Writes the tokenizer of an exported model into a corpus folder, ANSWERS_MODEL too."""
    for name in TOKENIZER_FILES:
        shutil.copyfile(model / name, folder / name)
    folding, rule = (model / "tokenizer.model").read_bytes(), _folding_rule()
    assert folding.endswith(rule)
    (folder / ANSWERS_MODEL).write_bytes(folding.removesuffix(rule))


def write_tokenizer_config(folder: Path) -> None:
    """Writes the two JSON files that name the control tokens and hold the chat template."""
    controls = [*SPECIALS.values(), *ROLES.values()]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # Llama's takes every model for BPE
        **SPECIALS,
        "add_bos_token": True,
        "add_eos_token": False,
        "additional_special_tokens": list(ROLES.values()),
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
        "added_tokens_decoder": {
            str(index): {"content": token, "special": True, "normalized": False}
            for index, token in enumerate(controls)
        },
        "chat_template": CHAT_TEMPLATE,
    }
    write_json(folder / "tokenizer_config.json", config)
    specials = {**SPECIALS, "additional_special_tokens": list(ROLES.values())}
    write_json(folder / "special_tokens_map.json", specials)


def write_fast_tokenizer(folder: Path) -> None:
    """Writes tokenizer.json: the same pieces, ids and rules for the tokenizers library."""
    model = load_tokenizer(folder)
    characters = base64.b64encode(_characters_map(FOLDS_CAPITALS)).decode("ascii")
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    controls = enumerate([*SPECIALS.values(), *ROLES.values()])
    normalizers = [
        {"type": "Precompiled", "precompiled_charsmap": characters},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        {"type": "Strip", "strip_left": True, "strip_right": True},
    ]
    pieces = range(model.get_piece_size())
    description = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": c, **flags, "special": True} for i, c in controls],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": {**space, "split": True},
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [{"type": "ByteFallback"}, {**space, "split": True}],
        },
        "model": {
            "type": "Unigram",
            "unk_id": UNK,
            "vocab": [[model.id_to_piece(i), model.get_score(i)] for i in pieces],
            "byte_fallback": True,
        },
    }
    write_json(folder / "tokenizer.json", description)


def write_json(path: Path, value: object) -> None:
    """Writes indented JSON with a newline at the end."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def load_tokenizer(folder: Path) -> sp.SentencePieceProcessor:
    """The tokenizer of a folder that holds tokenizer.model."""
    return sp.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


class ConversationEncoder:
    """Encodes conversations; answers, of which there are few, are encoded once and kept."""

    def __init__(
        self,
        tokenizer: sp.SentencePieceProcessor,
        answers: sp.SentencePieceProcessor | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._answers_tokenizer = answers or tokenizer
        self._answers: dict[str, list[int]] = {}

    def question(self, text: str) -> list[int]:
        """Ids of a question, up to where the answer begins."""
        return [USER, *self._tokenizer.encode(text), ASSISTANT]

    def answer(self, text: str) -> list[int]:
        """Ids of an answer as the model writes it, and the end after it."""
        if text not in self._answers:
            self._answers[text] = [*self._answers_tokenizer.encode(text), EOS]
        return self._answers[text]

    def reread(self, text: str) -> list[int]:
        """Ids of an earlier answer that was read again: without its capitals."""
        return [*self._tokenizer.encode(text), EOS]

    def prompt(self, messages: list[dict[str, str]]) -> list[int]:
        """Ids of chat messages that end with a question, ready to be answered."""
        ids = [BOS]
        for message in messages:
            encode = self.question if message["role"] == "user" else self.reread
            ids += encode(message["content"])
        return ids

    def conversation(
        self, conversation: Conversation, is_reread: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of a conversation, and where each answer (its end included) starts and stops.

        With `is_reread` only the last answer is as the model writes it; the span of the others is
        empty, since nobody writes them that way.
        """
        ids, spans = [BOS], []
        for number, turn in enumerate(conversation):
            ids += self.question(turn.question)
            start = len(ids)
            is_written = not is_reread or number == len(conversation) - 1
            ids += self.answer(turn.answer) if is_written else self.reread(turn.answer)
            spans.append((start, len(ids)) if is_written else (start, start))
        return ids, spans


def training_encoder(corpus: Path) -> ConversationEncoder:
    """The encoder of a corpus folder, which knows how the model writes its answers."""
    answers = sp.SentencePieceProcessor(model_file=str(corpus / ANSWERS_MODEL))
    return ConversationEncoder(load_tokenizer(corpus), answers)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, default=Path("build/demo/corpus"))
    parser.add_argument("--conversations", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--like", type=Path, help="take that of this model, and train none")
    args = parser.parse_args()
    if args.like is not None:
        take_tokenizer(args.like, args.corpus)
    else:
        material = load_material(args.corpus)
        train_tokenizer(material, args.corpus, args.conversations, args.seed)
    print(f"{load_tokenizer(args.corpus).get_piece_size()} pieces, in {args.corpus}")


if __name__ == "__main__":
    main()
