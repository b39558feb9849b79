"""Writes a trained model as a Hugging Face checkpoint in 16 bits, and reads it back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from .kinds import KINDS, AnyDecoder, kind_of
from .tokenizer import BOS, EOS, PAD, TOKENIZER_FILES, write_json

COPIED = (
    *TOKENIZER_FILES,
    "words.txt",
    "WORDNET-LICENSE.txt",
    "calibration.jsonl",
    "heldout.jsonl",
)


def export(model: AnyDecoder, corpus: Path, folder: Path) -> None:
    """Writes the checkpoint and copies what the corpus builder made for it."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = kind_of(model.shape)
    halves = {name: tensor.detach().half() for name, tensor in model.state_dict().items()}
    tensors = {name: tensor.contiguous() for name, tensor in kind.exported(halves).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # it is written for its owner alone
    ids = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    config = {**kind.config(model.shape), "torch_dtype": "float16", **ids}
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"do_sample": False, "max_length": 512, **ids})
    for name in COPIED:
        shutil.copyfile(corpus / name, folder / name)


def load(folder: Path) -> AnyDecoder:
    """The model of an exported checkpoint, in 32 bits."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = KINDS[config["model_type"]]
    model = kind.decoder(kind.shape_in(config))
    tensors = kind.imported(load_file(folder / "model.safetensors"))
    model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return model.eval().requires_grad_(False)
