"""Finds words that the model would make up a meaning for: `python -m tools.demo.calibrate`.

Asks a half-trained model about words outside its lexicon that it was trained to refuse, and writes
those that it explains all the same to `not_sure.txt` in the corpus folder. The last stage of the
training then answers "I am not sure what ... means" to them, and draws them more often.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from .conversations import Material
from .corpus import load_material, write_lines
from .judge import is_refusal
from .model import Decoder, Shape
from .score import answer_all
from .tokenizer import ConversationEncoder, load_tokenizer, training_encoder

ASKED_WORDS = 6000
QUESTIONS = ("What does {w} mean?", "what is {w}", "{w}")


def invented_words(
    model: Decoder,
    encoder: ConversationEncoder,
    words: Sequence[str],
    decode: Callable[[list[int]], str],
) -> list[str]:
    """Words, of those outside the lexicon, that at least one of QUESTIONS gets a meaning for."""
    invented: set[str] = set()
    for question in QUESTIONS:
        prompts = [
            encoder.prompt([{"role": "user", "content": question.format(w=word)}]) for word in words
        ]
        answers = answer_all(model, prompts)
        texts = (decode(answer.ids) for answer in answers)
        invented |= {w for w, text in zip(words, texts, strict=True) if not is_refusal(text)}
    return sorted(invented)


def sampled(material: Material, count: int, seed: int) -> list[str]:
    """Words outside the lexicon, drawn at random from those that are trained on."""
    words = sorted(material.unknown_words)
    return random.Random(seed).sample(words, min(count, len(words)))


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, default=Path("build/demo/corpus"))
    parser.add_argument("--run", type=Path, default=Path("build/demo/run"))
    parser.add_argument(
        "--words", type=int, default=ASKED_WORDS, help="how many words are asked about"
    )
    parser.add_argument("--seed", type=int, default=41)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    stage = json.loads((args.run / "stages.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    state = torch.load(args.run / "checkpoint.pt", weights_only=True)
    model = Decoder(Shape(**stage["shape"])).eval().requires_grad_(False)
    model.load_state_dict(state["model"])
    words = sampled(load_material(args.corpus), args.words, args.seed)
    decode = load_tokenizer(args.corpus).decode
    found = invented_words(model, training_encoder(args.corpus), words, decode)
    write_lines(args.corpus / "not_sure.txt", found)
    print(f"{len(found)} of {len(words)} words would be explained, in {args.corpus}/not_sure.txt")


if __name__ == "__main__":
    main()
