"""What people type who come from ollama, llm and llama.cpp, and what must be said to them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

GOLDEN = Path(__file__).parents[2] / "flash" / "golden"
ANSWERED, HELPED, DONE = "*answers*", "*prints help*", "*does it*"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
WORDS_MAX = 330
"""Characters of the old versions' help and lists in the table."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """A line as it is typed in a shell, and what the answer must have."""

    typed: str
    says: tuple[str, ...]
    """Parts of what is said on standard error, or of the one word for what is done."""
    code: int = 2


SECTIONS: dict[str, tuple[Mistake, ...]] = {
    "A prompt": (
        Mistake('flashllm run "What does ocean mean?"', (ANSWERED,), 0),
        Mistake("flashllm run demo What does ocean mean", (ANSWERED,), 0),
        Mistake("flashllm run What does ocean mean -n 20", (ANSWERED,), 0),
        Mistake('flashllm "What does ocean mean?"', ('flashllm run "What does ocean mean?"',)),
        Mistake("flashllm run -p What does ocean mean", ('-p "What does ocean mean"',)),
        Mistake("flashllm run -p first -p second", ("given twice", "in quotes")),
        Mistake("flashllm run hello", ("no model of that name", "flashllm run -p hello"), 66),
        Mistake("flashllm run demo", ('flashllm run MODEL "TEXT"', "`flashllm chat`")),
        Mistake("flashllm batch rows.jsonl", ("required: OUT",)),
        Mistake("flashllm batch big rows.jsonl out.jsonl", ("`flashllm batch IN OUT [MODEL]`",)),
        Mistake("flashllm prompt hello", ('`flashllm run "TEXT"`',)),
        Mistake("flashllm chat demo hello", ("too many", "`flashllm run`")),
    ),
    "A model": (
        Mistake("flashllm big", ("`flashllm chat big`",)),
        Mistake("flashllm run bgi -p hi", ("did you mean big?",), 66),
        Mistake("flashllm run name:8b -p hi", ("no tags", "flashllm pull"), 66),
        Mistake("flashllm run org/tiny -p hi", ("not yet", "flashllm convert org/tiny"), 65),
        Mistake("flashllm run org/other -p hi", ("`flashllm pull org/other`",), 66),
        Mistake("flashllm -m big", ("the model is the first word",)),
        Mistake("flashllm run --model big -p hello", ("the model is the first word",)),
        Mistake("flashllm -hf org/tiny", ("`flashllm pull ORG/NAME`",)),
        Mistake("flashllm run model.gguf -p hi", ("a GGUF file", "flashllm convert"), 65),
        Mistake("flashllm run model.onnx -p hi", ("an ONNX model",), 65),
        Mistake("flashllm run checkpoint -p hi", ("flashllm convert checkpoint",), 65),
        Mistake("flashllm convert checkpoint/model.safetensors", ("the checkpoint: ",), 65),
        Mistake("flashllm convert weights.pt out", ("PyTorch, weights alone",), 65),
        Mistake("flashllm convert mlx out", ("3 bits for Apple's MLX",), 65),
        Mistake("flashllm convert org/tiny", (DONE,), 0),
        Mistake("flashllm plan opt-13c", ("did you mean opt-13b",), 66),
        Mistake("flashllm show bgi", ("did you mean big?",), 66),
    ),
    "A command": (
        Mistake("flashllm help", (HELPED,), 0),
        Mistake("flashllm help run", (HELPED,), 0),
        Mistake("flashllm list", ("`flashllm ls`",)),
        Mistake("flashllm lst", ("`flashllm ls`",)),
        Mistake("flashllm download name", ("`flashllm pull ORG/NAME`",)),
        Mistake("flashllm serve", ("nothing has to be served",)),
        Mistake("flashllm ps", ("no model stays open", "`flashllm ls`")),
        Mistake("flashllm delete big", ("`flashllm rm NAME`",)),
        Mistake("flashllm quantize checkpoint", ("--dtype int8",)),
        Mistake("flashllm create name", ("`flashllm convert SRC DST`",)),
        Mistake("flashllm logs", ("`flashllm sessions list`",)),
        Mistake("flashllm version", ("`flashllm --version`",)),
        Mistake("flashllm /bye", ("for inside the chat",)),
        Mistake("flashllm bench", ("give one of io, tokens, prompt, ablation, cache",)),
        Mistake("flashllm bench tokns", ("did you mean tokens?",)),
    ),
    "An option": (
        Mistake("flashllm run -p hi --temperature 0.7", ("--temp?", "flashllm run --help")),
        Mistake("flashllm run -p hi --top_p 0.9", ("--top-p?",)),
        Mistake("flashllm run -p hi --n-predict 20", ("--max-tokens?",)),
        Mistake("flashllm run -p hi -n -1", ("-n 4096",)),
        Mistake("flashllm run -p hi --seed -1", ("0 or more",)),
        Mistake("flashllm run -p hi --num-ctx 4096", ("--ctx-size?",)),
        Mistake("flashllm run -p hi -ngl 99", ("on the processor",)),
        Mistake("flashllm run -p hi -t 8", ("--io-threads", "OMP_NUM_THREADS")),
        Mistake("flashllm run -p hi --verbose", ("--stats",)),
        Mistake("flashllm run -p hi --format json", ("--json?",)),
        Mistake("flashllm run -p hi -o temperature 0.7", ("--temp 0.7",)),
        Mistake("flashllm run -p hi --repeat-penalty 1.1", ("--repetition-penalty?",)),
        Mistake("flashllm run -p hi -i", ("`flashllm chat`",)),
        Mistake("flashllm chat --host 0.0.0.0", ("nothing has to be served",)),
        Mistake("flashllm run -p hi --memroy 8GiB", ("--memory?",)),
        Mistake("flashllm run -p hi --memory 8", ("8GiB or 8MiB?",)),
        Mistake("flashllm convert checkpoint out --dtype q4_0", ("did you mean int4?",)),
        Mistake("flashllm convert checkpoint out --quantize int8", ("--dtype int8",)),
        Mistake("flashllm plan opt-13b --memory 8GiB", ("--dtype int8",), 71),
    ),
    "A setting": (
        Mistake(
            "FLASHLLM_MEMROY=8GiB flashllm config show --json", ("did you mean FLASHLLM_MEMORY",), 0
        ),
        Mistake("FLASHLLM_MEMORY=8 flashllm run -p hi", ("8GiB or 8MiB?",)),
        Mistake(
            "CONFIG='memmory = \"8GiB\"' flashllm ls --checkpoints", ("did you mean 'memory'",), 0
        ),
        Mistake("CONFIG='temp = hot' flashllm config show", ("is not TOML",), 0),
    ),
}
"""By what is wrong. A variable CONFIG before a command is the text of config.toml."""
MISTAKES = tuple(mistake for section in SECTIONS.values() for mistake in section)


def build(root: Path) -> dict[str, str]:
    """The user and the directory in which the lines are typed; returns the environment."""
    home, work, hub = root / "home", root / "work", root / "hub"
    shutil.copytree(GOLDEN / "converted", home / "models" / "big.flash")
    for name in ("checkpoint", "mlx"):
        shutil.copytree(GOLDEN / "source", work / name)
    config = json.loads((work / "mlx" / "config.json").read_bytes())
    config["quantization"] = {"group_size": 64, "bits": 3}
    (work / "mlx" / "config.json").write_text(json.dumps(config))
    (work / "model.gguf").write_bytes(b"GGUF\x03\0\0\0")
    (work / "model.onnx").write_bytes(b"\x08\x07")
    (work / "weights.pt").write_bytes(b"PK\x03\x04")
    repository = hub / "models--org--tiny"
    shutil.copytree(GOLDEN / "source", repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return {"FLASHLLM_HOME": str(home), "HF_HUB_CACHE": str(hub), "COLUMNS": "80"}


def typed_words(line: str) -> tuple[dict[str, str], list[str]]:
    """The variables that a line sets, and the words behind `flashllm`."""
    words = shlex.split(line)
    at = words.index("flashllm")
    return dict(word.split("=", 1) for word in words[:at]), words[at + 1 :]


@contextlib.contextmanager
def config_file(root: Path, variables: dict[str, str]):  # type: ignore[no-untyped-def]
    """Context manager in which config.toml has the text that a line gives it; the others remain."""
    file = root / "home" / "config.toml"
    rest = {name: value for name, value in variables.items() if name != "CONFIG"}
    if "CONFIG" in variables:
        file.write_text(variables["CONFIG"])
    try:
        yield rest
    finally:
        file.unlink(missing_ok=True)


def said(code: int, out: str, err: str, root: Path) -> str:
    """What a line came to, in a cell of the table: the same on every machine."""
    text = err.replace("flashllm: ", "")
    if code == 0 and (not text.strip() or "%, " in text):  # progress
        text = HELPED if out.startswith("usage: ") else ANSWERED if "(noun)" in out else DONE
    for path, shown in (("work/", ""), ("work", "."), ("home", "~/.flashllm"), ("hub", "~/hub")):
        text = text.replace(f"{root}/{path}", shown)
    text = re.sub(r"\(interpreter [^)]*\)", "(...)", text)
    text = " ".join(text.split())
    if len(text) > WORDS_MAX:
        text = f"{text[:WORDS_MAX]}..."
    return text if code in (0, 2) or text.startswith("*") else f"{text} (exit {code})"


def run_here(line: str, root: Path) -> tuple[int, str, str]:
    """Runs a line in this process; (exit code, standard output, standard error)."""
    from flashllm.cli.main import main

    out, err = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    variables, words = typed_words(line)
    with (
        config_file(root, variables) as rest,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        before = dict(os.environ)
        os.environ.update(rest)
        try:
            code = main(words)
        except SystemExit as leaving:  # help
            code = int(leaving.code or 0)
        finally:
            os.environ.clear()
            os.environ.update(before)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return code, *texts
