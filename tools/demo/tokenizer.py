"""Trains the tokenizer (`python -m tools.demo.tokenizer`) and encodes conversations with it.

They are encoded exactly as the chat template has it: template text becomes control ids, which no
user text can encode to, and every message content is encoded by itself: `[bos, user, *content,
assistant, *content, eos, user, ...]`.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

import sentencepiece as sp

from .corpus import Conversation, Material, draw, load_material

VOCAB_SIZE = 4352  # 4,096 pieces of text and controls, and 256 bytes to spell everything else
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
    for index in range(conversations):
        for turn in draw(material, material.facts[index % len(material.facts)], rng):
            yield turn.question
            yield turn.answer


def train_tokenizer(material: Material, folder: Path, conversations: int, seed: int) -> None:
    """Writes tokenizer.model and the JSON files beside it into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "tokenizer.model").open("wb") as stream:
        sp.SentencePieceTrainer.train(
            sentence_iterator=_sentences(material, conversations, seed),
            model_writer=stream,
            model_type="unigram",
            vocab_size=VOCAB_SIZE,
            byte_fallback=True,
            character_coverage=1.0,
            normalization_rule_name="nfkc",
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            pad_id=PAD,
            pad_piece="<pad>",
            control_symbols=list(ROLES.values()),
            num_threads=1,  # with more, the pieces' order depends on the threads
            minloglevel=2,
        )
    write_tokenizer_config(folder)
    write_fast_tokenizer(folder)


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
    """Writes tokenizer.json: the same pieces and ids for the tokenizers library."""
    model = load_tokenizer(folder)
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    controls = enumerate([*SPECIALS.values(), *ROLES.values()])
    normalizers = [
        {"type": "NFKC"},
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

    def __init__(self, tokenizer: sp.SentencePieceProcessor) -> None:
        self._tokenizer = tokenizer
        self._answers: dict[str, list[int]] = {}

    def question(self, text: str) -> list[int]:
        """Ids of a question, up to where the answer begins."""
        return [USER, *self._tokenizer.encode(text), ASSISTANT]

    def answer(self, text: str) -> list[int]:
        """Ids of an answer and the end after it."""
        if text not in self._answers:
            self._answers[text] = [*self._tokenizer.encode(text), EOS]
        return self._answers[text]

    def prompt(self, messages: list[dict[str, str]]) -> list[int]:
        """Ids of chat messages that end with a question, ready to be answered."""
        ids = [BOS]
        for message in messages:
            encode = self.question if message["role"] == "user" else self.answer
            ids += encode(message["content"])
        return ids

    def conversation(self, conversation: Conversation) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of a conversation, and where each answer (its end included) starts and stops."""
        ids, spans = [BOS], []
        for turn in conversation:
            ids += self.question(turn.question)
            start = len(ids)
            ids += self.answer(turn.answer)
            spans.append((start, len(ids)))
        return ids, spans


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, default=Path("build/demo/corpus"))
    parser.add_argument("--conversations", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    material = load_material(args.corpus)
    train_tokenizer(material, args.corpus, args.conversations, args.seed)
    print(f"{load_tokenizer(args.corpus).get_piece_size()} pieces, in {args.corpus}")


if __name__ == "__main__":
    main()
