"""A worker: flashllm from Python, where another prompt goes through first.

What that prompt read stays in memory as far as there is room, with room for all the rest is read
too, and nothing of it is the beginning of the next one. Without that, `flashllm run` is measured,
from the command to the last token.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.peers.contenders import memory_ceiling_bytes
from benchmarks.peers.worker import Task, parse_task
from flashllm.engine.local import Model, open_model
from flashllm.options import ModelOptions


def measure(model: Model, task: Task) -> dict[str, Any]:
    """The first prompt, then the one whose answer counts; as the report of `flashllm run`."""
    first = model.generate(task.first_ids, 1)
    list(first)
    while model.warm_up() < 1:  # as while a user reads; few tokens read only what they need
        pass
    generation = model.generate(task.ids, task.tokens + 1)
    costs = [token.cost for token in generation]
    report = generation.report()
    settings = report["settings"]
    return {
        "how": f"select {settings['select']}, second prompt",
        "prefill_ns": report["prefill"]["wall_ns"],
        "first_prefill_ns": first.report()["prefill"]["wall_ns"],
        "samples_ns": [cost.wall_ns for cost in costs[1:]],
        "rss_peak_bytes": report["memory"]["rss_peak_bytes"],
        "tokens": generation.ids,
        "facts": {
            "settings": settings,
            "prompt_bytes_read": report["prefill"]["bytes_read"],
            "answer_bytes_read": sum(cost.bytes_read for cost in costs[1:]),
        },
    }


def main() -> None:
    """Run the worker."""
    task = parse_task(__doc__)
    limit_bytes = task.limit_bytes
    memory = None if limit_bytes is None else memory_ceiling_bytes(limit_bytes)
    options = ModelOptions(memory=memory, context=task.context, select=task.select)
    with open_model(task.model, options) as model:
        print(json.dumps(measure(model, task)), flush=True)


if __name__ == "__main__":
    main()
