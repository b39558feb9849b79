"""Records the demo's answers again: `python tests/parity/answers/make.py` in the project's root.

Do so only where a change of the answers is meant, in a commit of its own that says why. With
`--show` the answers go to standard output and nothing is written.

Scalar kernels and the portable paths of torch compute them, so that every x86 machine records the
same ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
RECORD = HERE / "answers.json"
PRECISIONS = ("f16", "int8", "int4")
PROMPTS = 20
TOKENS = 24
DRAWN = {"temperature": 0.8, "top_p": 0.95, "seed": 11}
HOW: dict[str, dict[str, Any]] = {"greedy": {}, "drawn": DRAWN}
PORTABLE = {
    "FLASHLLM_ISA": "scalar",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
}
"""What chooses the instructions, of the kernels and of torch."""


def questions(source: Path) -> list[str]:
    """Some of the held-out ones, evenly."""
    lines = (source / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
    some = [lines[number * len(lines) // PROMPTS] for number in range(PROMPTS)]
    return [json.loads(line)["messages"][0]["content"] for line in some]


def answers(folder: Path) -> dict[str, Any]:
    """By precision and by how tokens are taken, the ids of each answer."""
    from flashllm.convert import convert, demo_source

    from flashllm.engine.local import open_model
    from flashllm.engine.sampling import Sampling

    source = demo_source()
    found: dict[str, Any] = {"questions": questions(source)}
    for precision in PRECISIONS:
        directory = folder / precision
        predictors = source / "predictors.safetensors"
        convert(
            source,
            directory,
            dtype=precision,
            predictors=predictors,
            predictor_dtype=precision,
        )
        with open_model(directory, context=128) as model:
            for how, sampling in HOW.items():
                rows = []
                for question in found["questions"]:
                    ids = model.tokenizer.encode_chat([{"role": "user", "content": question}])
                    generation = model.generate(ids, TOKENS, Sampling(**sampling))
                    for _ in generation:
                        pass
                    rows.append(generation.ids)
                found[f"{precision} {how}"] = rows
    return found


def computed() -> dict[str, Any]:
    """`answers` of a process of its own, which begins with PORTABLE."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [sys.executable, str(Path(__file__)), "--compute", home],
            env=os.environ | PORTABLE | {"FLASHLLM_HOME": home},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def text_of(found: dict[str, Any]) -> str:
    """JSON with an answer a line."""
    parts = []
    for name, rows in found.items():
        lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
        parts.append(f"{json.dumps(name)}: [\n  {lines}\n ]")
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def main(arguments: list[str]) -> None:
    """Write the record, show what would be written, or compute it here."""
    if arguments[:1] == ["--compute"]:
        sys.path.insert(0, str(ROOT))
        print(json.dumps(answers(Path(arguments[1]))))
    elif arguments == ["--show"]:
        print(text_of(computed()), end="")
    else:
        RECORD.write_text(text_of(computed()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
