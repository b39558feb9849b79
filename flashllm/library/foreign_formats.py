"""Models in formats of other programs, told by their content: what each is, and what to do instead.

Only names and first bytes are looked at.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Any

from flashllm.errors import NotACheckpoint
from flashllm.library.formatting import clean
from flashllm.untrusted.strict_json import parse_object

ENTRIES_MAX = 1000
CONFIG_BYTES_MAX = 1 << 20
_ORIGINAL = (
    "take the original checkpoint, a directory with config.json and safetensors, and"
    " `flashllm convert` it; `flashllm pull ORG/NAME` fetches one"
)
_GGUF = "a GGUF file"
_GGML = f"a GGML file of an early llama.cpp: {_ORIGINAL}"
_MAGIC = {
    b"GGUF": _GGUF, b"lmgg": _GGML, b"tjgg": _GGML, b"fmgg": _GGML, b"algg": _GGML,
}  # fmt: skip
_PYTORCH = "a file of PyTorch, weights alone"
_SAFETENSORS = "a file of weights alone"
_ENDINGS = {
    ".gguf": _GGUF,
    ".ggml": _GGML,
    ".onnx": f"an ONNX model: {_ORIGINAL}",
    ".safetensors": _SAFETENSORS,
    ".pt": _PYTORCH,
    ".pth": _PYTORCH,
    ".bin": _PYTORCH,
    ".ckpt": _PYTORCH,
    ".h5": f"weights for TensorFlow: {_ORIGINAL}",
    ".msgpack": f"weights for JAX: {_ORIGINAL}",
    ".mlmodel": f"a Core ML model: {_ORIGINAL}",
    ".mlpackage": f"a Core ML model: {_ORIGINAL}",
    ".tflite": f"a TensorFlow Lite model: {_ORIGINAL}",
    ".zip": "an archive: unpack it, and give the directory",
    ".gz": "an archive: unpack it, and give the directory",
    ".tgz": "an archive: unpack it, and give the directory",
    ".tar": "an archive: unpack it, and give the directory",
}
"""By the end of a file's name."""


def describe_foreign(path: Path) -> str:
    """What a file or directory of another program is, and what to do; "" for what is none."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return ""
    return _directory(path) if stat.S_ISDIR(mode) else _file(path)


def looks_foreign(text: str) -> bool:
    """Whether a name ends like a file of weights, there or not."""
    return Path(text).suffix.lower() in _ENDINGS


def _file(path: Path) -> str:
    found = _MAGIC.get(_first_bytes(path)) or _ENDINGS.get(path.suffix.lower(), "")
    if found == _GGUF:
        return f"{_GGUF}, not yet a converted model; first: {_command(path)}"
    if found not in (_PYTORCH, _SAFETENSORS):
        return found or "a file; a model is a directory, which `flashllm convert` makes"
    folder = path.absolute().parent
    if os.path.isfile(folder / "config.json"):
        return f"{found}; the directory that it lies in is the checkpoint: {_command(folder)}"
    return (
        f"{found}; a checkpoint is a directory, with config.json and the tokenizer's files beside"
        f" it: `flashllm convert` takes that, `flashllm pull ORG/NAME` fetches one"
    )


def _directory(path: Path) -> str:
    names = _names(path)
    if path.suffix.lower() == ".mlpackage":
        return _ENDINGS[".mlpackage"]
    if "adapter_config.json" in names and "config.json" not in names:
        return (
            "an adapter (LoRA), not a whole model: merge it into its base model with peft"
            " (merge_and_unload, save_pretrained), and convert the result"
        )
    if "config.json" in names:
        return _of_config(path / "config.json")
    if any(name.endswith(".gguf") for name in names):
        return f"a directory with {_GGUF}, not yet a converted model; first: {_command(path)}"
    if any(name.endswith(".onnx") for name in names):
        return f"a directory with {_ENDINGS['.onnx']}"
    return ""


def _of_config(file: Path) -> str:
    """MLX writes `quantization`, which Hugging Face calls `quantization_config`."""
    values: dict[str, Any] = {}
    with contextlib.suppress(OSError, NotACheckpoint), open(file, "rb") as opened:
        values = parse_object(opened.read(CONFIG_BYTES_MAX), file, NotACheckpoint)
    settings = values.get("quantization")
    if not isinstance(settings, dict) or "group_size" not in settings:
        return ""
    if settings.get("bits") in (4, 8):  # those that `convert --requantise` takes
        return ""
    bits = clean(str(settings.get("bits", "few")))[:8]
    return (
        f"a model in {bits} bits for Apple's MLX, of which only those in 4 and 8 bits can be"
        f" rounded again: {_ORIGINAL}"
    )


def _command(source: Path) -> str:
    return f"`flashllm convert {clean(str(source))}`"


def _first_bytes(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        # A pipe would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return os.read(descriptor, 4)
        finally:
            os.close(descriptor)
    return b""


def _names(path: Path) -> set[str]:
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        return {entry.name for _, entry in zip(range(ENTRIES_MAX), entries, strict=False)}
    return set()
