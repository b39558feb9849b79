"""A worker: batches of prompts through Hugging Face transformers with accelerate.

Prompts of one length, so that nothing is padded; decoding by the library's own `generate`, greedily
and to the full length. Memory for the keys and values of a batch is left free of weights.
"""

from __future__ import annotations

import argparse
import importlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.accelerate import load
from benchmarks.peers.worker import Task
from flashllm.system.memory import rss_peak_bytes

_IO = Path("/proc/self/io")


def bytes_from_disk() -> int | None:
    """Bytes that this process had read from a disk so far; None where the kernel does not say."""
    if not _IO.exists():
        return None
    fields = dict(line.split(": ") for line in _IO.read_text().splitlines())
    return int(fields["read_bytes"])


def answer_all(model: Any, prompts: list[list[int]], batch: int, new_tokens: int) -> list[Any]:
    """Answers as ids, batch after batch."""
    torch: Any = importlib.import_module("torch")
    answers: list[Any] = []
    for first in range(0, len(prompts), batch):
        given = torch.tensor(prompts[first : first + batch])
        with torch.inference_mode():
            out = model.generate(
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
            )
        answers += out[:, given.shape[1] :].tolist()
    return answers


def main() -> None:
    """Run the worker; the last line that it prints is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=Path, required=True, help="a list of lists of ids")
    parser.add_argument("--new-tokens", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--limit-bytes", type=int)
    parser.add_argument("--reserve-bytes", type=int, default=0)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    limit = options.limit_bytes
    task = Task(
        options.model, [], options.new_tokens, 0.0,
        None if limit is None else limit - options.reserve_bytes, options.threads,
    )  # fmt: skip
    prompts = json.loads(options.prompts.read_text("utf-8"))
    with tempfile.TemporaryDirectory(prefix="flashllm-peers-") as offload:
        model, facts = load(task, Path(offload))
        before, begin = bytes_from_disk(), time.perf_counter()
        answers = answer_all(model, prompts, options.batch, options.new_tokens)
        seconds, after = time.perf_counter() - begin, bytes_from_disk()
    found = {
        "seconds": seconds,
        "completion_tokens": sum(map(len, answers)),
        "bytes_read": None if before is None or after is None else after - before,
        "rss_peak_bytes": rss_peak_bytes(),
        "facts": facts,
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
