"""Commands and options of other programs (ollama, llm, llama.cpp, transformers), and ours instead.

Only for what ours does not have: a command or an option of the same name goes before.
"""

from __future__ import annotations

_CONVERT = "weights are encoded when a model is made: `flashllm convert SRC --dtype int8`, or int4"
_GPU = (
    "flashllm computes on the processor and counts no layers; with a GPU, --device and"
    " --device-memory"
)
_MODEL = "the model is the first word: `flashllm run MODEL TEXT`, `flashllm chat MODEL`"
_PULL = "`flashllm pull ORG/NAME` fetches a model from Hugging Face"
_READING = "weights are read past the page cache; --memory SIZE says how much may stay in memory"
_SERVER = "nothing has to be served: `flashllm run` and `flashllm chat` open the model themselves"
_TALK = "`flashllm chat` is the conversation in the terminal"
_THREADS = "--io-threads N is for reading; OMP_NUM_THREADS=N says how many compute"

COMMANDS = {
    "ask": 'did you mean `flashllm run "TEXT"`?',
    "benchmark": "did you mean `flashllm bench tokens`?",
    "cli": _TALK,
    "complete": 'did you mean `flashllm run --raw "TEXT"`?',
    "cp": "copy its directory; `flashllm show NAME` says where that is",
    "create": "`flashllm convert SRC DST` makes a model of a checkpoint",
    "delete": "did you mean `flashllm rm NAME`?",
    "download": _PULL,
    "fetch": _PULL,
    "generate": 'did you mean `flashllm run "TEXT"`?',
    "get": _PULL,
    "install": _PULL,
    "keys": "no keys are needed: models run on this machine",
    "list": "did you mean `flashllm ls`?",
    "login": "`hf auth login` keeps a token for Hugging Face, which `flashllm pull` uses",
    "logs": "did you mean `flashllm sessions list`?",
    "perplexity": "did you mean `flashllm eval`?",
    "prompt": 'did you mean `flashllm run "TEXT"`?',
    "ps": "no model stays open: it is closed when its command ends; `flashllm ls` lists models",
    "push": "nothing is published; a model is a directory that can be copied",
    "quantise": _CONVERT,
    "quantize": _CONVERT,
    "remove": "did you mean `flashllm rm NAME`?",
    "rename": "did you mean `flashllm mv NAME NEW`?",
    "repl": _TALK,
    "search": "`flashllm models` lists models that run well here",
    "serve": _SERVER,
    "settings": "did you mean `flashllm config show`?",
    "start": _TALK,
    "stop": "no model stays open: it is closed when its command ends",
    "uninstall": "did you mean `flashllm rm NAME`?",
    "update": "`pip install --upgrade flashllm` brings a new version",
    "upgrade": "`pip install --upgrade flashllm` brings a new version",
    "version": "did you mean `flashllm --version`?",
}
"""What to do instead of a command that ours does not have."""

OPTIONS = {
    "--batch-size": "the size of a prompt's pieces follows from the model; leave it out",
    "--cache-type-k": "did you mean --kv-dtype?",
    "--cache-type-v": "did you mean --kv-dtype?",
    "--chat-template": "the model's own template is used; --raw uses none",
    "--context-length": "did you mean --ctx-size?",
    "--context-size": "did you mean --ctx-size?",
    "--conversation": _TALK,
    "--dry-run": "`flashllm plan SRC` says what a model would take, and writes nothing",
    "--flash-attn": "attention has no variants to choose from; leave it out",
    "--format": "did you mean --json?",
    "--gpu": _GPU,
    "--gpu-layers": _GPU,
    "--hf-repo": f"{_PULL}, and then its name is enough: `flashllm run NAME TEXT`",
    "--host": _SERVER,
    "--interactive": _TALK,
    "--jinja": "the model's own template is used anyway; leave it out",
    "--keepalive": "no model stays open: it is closed when its command ends",
    "--load-in-4bit": _CONVERT,
    "--load-in-8bit": _CONVERT,
    "--lora": "merge the adapter into its model first (peft: merge_and_unload), and convert that",
    "--max-length": "did you mean --max-tokens?",
    "--max-new-tokens": "did you mean --max-tokens?",
    "--mlock": _READING,
    "--model": _MODEL,
    "--n-ctx": "did you mean --ctx-size?",
    "--n-gpu-layers": _GPU,
    "--n-predict": "did you mean --max-tokens?",
    "--no-display-prompt": "the prompt is not printed anyway; leave it out",
    "--no-mmap": _READING,
    "--num-ctx": "did you mean --ctx-size?",
    "--num-predict": "did you mean --max-tokens?",
    "--option": "options have flags of their own here, like --temp 0.7",
    "--port": _SERVER,
    "--quant": _CONVERT,
    "--quantization": _CONVERT,
    "--quantize": _CONVERT,
    "--ram": "did you mean --memory?",
    "--repeat-penalty": "did you mean --repetition-penalty?",
    "--temperature": "did you mean --temp?",
    "--threads": _THREADS,
    "--tokens": "did you mean --max-tokens?",
    "--verbose": "--stats says what an answer cost; in the chat it is F2",
    "-b": "the size of a prompt's pieces follows from the model; leave it out",
    "-cnv": _TALK,
    "-fa": "attention has no variants to choose from; leave it out",
    "-hf": f"{_PULL}, and then its name is enough: `flashllm run NAME TEXT`",
    "-i": _TALK,
    "-m": _MODEL,
    "-ngl": _GPU,
    "-o": "options have flags of their own here, like --temp 0.7",
    "-q": _CONVERT,
    "-sys": "did you mean --system?",
    "-t": _THREADS,
    "-v": "--stats says what an answer cost; --version is the version",
}
"""The same for options, as they are spelt with `-` between words."""

_ENDLESS = "an answer ends after some tokens here; give their number, as in -n 4096"
_SEED = "a seed is 0 or more; answers vary by it where --temp is above 0"
PAIRS = {
    ("--ctx-size", "0"): "leave it out for the usual context",
    ("--max-tokens", "-1"): _ENDLESS,
    ("--max-tokens", "-2"): _ENDLESS,
    ("--seed", "-1"): _SEED,
    ("-c", "0"): "leave it out for the usual context",
    ("-n", "-1"): _ENDLESS,
    ("-n", "-2"): _ENDLESS,
}
"""What values of our options mean elsewhere."""

VALUES = {
    "bfloat16": "bf16", "bf16": "bf16", "float16": "f16", "fp16": "f16", "half": "f16",
    "float32": "f32", "fp32": "f32", "float": "f32", "8bit": "int8", "8-bit": "int8", "i8": "int8",
    "q8": "int8", "q8_0": "int8", "4bit": "int4", "4-bit": "int4", "i4": "int4", "q4": "int4",
    "q4_0": "int4", "q4_1": "int4", "q4_k_m": "int4", "q4_k_s": "int4", "nf4": "int4",
    "mxfp4_moe": "mxfp4",
}  # fmt: skip
"""Encodings as others call them."""
