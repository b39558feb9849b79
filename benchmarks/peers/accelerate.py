"""A worker: Hugging Face transformers with accelerate, what does not fit in RAM left on disk.

The map of layers to RAM and disk is accelerate's own, given the memory that there is: as many
layers in RAM as fit, in order. What is on disk is read straight from the checkpoint's safetensors
for every token; what this version would rather copy is counted in `resaved_bytes`.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.worker import OUR_OPENMP_SETTING, Step, Task, parse_task, run
from flashllm.system.memory import rss_bytes

MARGIN_BYTES = 192 << 20
"""For activations, page tables, and the pages of the file that is being read."""


def memory_for_layers(
    limit_bytes: int, taken_bytes: int, layer_bytes: int, single_bytes: int
) -> int:
    """What is left for weights that stay in RAM; 0 where nothing is.

    Room stays for one layer read from disk; where the largest single weight, the embedding, is
    not in RAM either, for that. (For a float32 model of 5.3 GB under half of that, room for twice
    the embedding left two layers more on disk and took 8 % longer a token.)
    """
    left_bytes = limit_bytes - taken_bytes - MARGIN_BYTES
    if left_bytes - layer_bytes >= single_bytes:
        return left_bytes - layer_bytes
    return max(0, left_bytes - max(layer_bytes, single_bytes))


def load(task: Task, offload: Path) -> tuple[Any, dict[str, Any]]:
    """The model, dispatched, and what is to be known about it."""
    os.environ.pop(OUR_OPENMP_SETTING, None)
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.set_num_threads(task.threads)
    transformers.utils.logging.disable_progress_bar()
    settings: dict[str, Any] = {"dtype": "auto", "local_files_only": True}
    budget = None
    if task.limit_bytes is not None:
        sizes = largest_bytes(transformers, task.model)
        budget = memory_for_layers(task.limit_bytes, rss_bytes(), *sizes)
        settings |= {
            "device_map": "auto",
            "max_memory": {"cpu": budget},
            "offload_folder": str(offload),
        }
    model = transformers.AutoModelForCausalLM.from_pretrained(task.model, **settings).eval()
    places: dict[str, Any] = getattr(model, "hf_device_map", {})
    on_disk = [name for name, place in places.items() if place == "disk"]
    resaved = sum(path.stat().st_size for path in offload.rglob("*") if path.is_file())
    facts = {
        "dtype": str(model.dtype).removeprefix("torch."),
        "modules_on_disk": len(on_disk),
        "modules": len(places),
        "memory_for_layers_bytes": budget,
        "resaved_bytes": resaved,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    return model, facts


def largest_bytes(transformers: Any, directory: Path) -> tuple[int, int]:
    """Of the decoder layers, each of which is read from disk as a whole, and of single weights."""
    accelerate: Any = importlib.import_module("accelerate")
    config = transformers.AutoConfig.from_pretrained(directory, local_files_only=True)
    with accelerate.init_empty_weights():
        model = transformers.AutoModelForCausalLM.from_config(config)
    whole = set(model._no_split_modules or ())  # noqa: SLF001 - what accelerate itself asks for
    itemsize = int((config.dtype or model.dtype).itemsize)
    layers = [
        sum(int(weight.numel()) for weight in module.parameters())
        for module in model.modules()
        if type(module).__name__ in whole
    ]
    single = max(int(weight.numel()) for weight in model.parameters())
    return max(layers, default=single) * itemsize, single * itemsize


def step_of(model: Any) -> tuple[Step, Callable[[], None]]:
    """Greedy decoding with the library's own cache of keys and values, and what empties that."""
    torch: Any = importlib.import_module("torch")
    cache = None

    def step(ids: Sequence[int]) -> int:
        nonlocal cache
        with torch.inference_mode():
            given = torch.tensor([list(ids)])
            out = model(input_ids=given, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        return int(out.logits[0, -1].argmax())

    def forget() -> None:
        nonlocal cache
        cache = None

    return step, forget


def main() -> None:
    """Run the worker."""
    task = parse_task(__doc__)
    with tempfile.TemporaryDirectory(prefix="flashllm-peers-") as offload:
        model, facts = load(task, Path(offload))
        how = f"{facts['dtype']}, {facts['modules_on_disk']} of {facts['modules']} modules on disk"
        run(task, *step_of(model), how if facts["modules"] else f"{facts['dtype']}, RAM", facts)


if __name__ == "__main__":
    main()
