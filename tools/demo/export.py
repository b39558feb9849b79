"""Writes a trained model as a Hugging Face OPT checkpoint in 16 bits, and reads it back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from .model import Decoder, Shape
from .tokenizer import BOS, EOS, PAD, write_json

PREFIX = "model.decoder."
COPIED = (
    "tokenizer.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "words.txt",
    "WORDNET-LICENSE.txt",
    "calibration.jsonl",
    "heldout.jsonl",
)


def model_config(shape: Shape) -> dict[str, object]:
    """config.json as transformers' OPTConfig understands it."""
    return {
        "model_type": "opt",
        "architectures": ["OPTForCausalLM"],
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.d_model,
        "word_embed_proj_dim": shape.d_model,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "ffn_dim": shape.ffn_dim,
        "max_position_embeddings": shape.positions_max,
        "activation_function": "relu",
        "do_layer_norm_before": True,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "_remove_final_layer_norm": False,
        "tie_word_embeddings": True,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "layerdrop": 0.0,
        "init_std": 0.02,
        "use_cache": True,
        "torch_dtype": "float16",
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }


def export(model: Decoder, corpus: Path, folder: Path) -> None:
    """Writes the checkpoint and copies what the corpus builder made for it."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        PREFIX + name: t.detach().half().contiguous() for name, t in model.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # it is written for its owner alone
    write_json(folder / "config.json", model_config(model.shape))
    ids = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    write_json(folder / "generation_config.json", {"do_sample": False, "max_length": 512, **ids})
    for name in COPIED:
        shutil.copyfile(corpus / name, folder / name)


def load(folder: Path) -> Decoder:
    """The model of an exported checkpoint, in 32 bits."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shape = Shape(
        vocab_size=config["vocab_size"],
        d_model=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        ffn_dim=config["ffn_dim"],
        positions_max=config["max_position_embeddings"],
    )
    model = Decoder(shape)
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({name.removeprefix(PREFIX): t.float() for name, t in tensors.items()})
    return model.eval().requires_grad_(False)
