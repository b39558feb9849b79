"""A worker: llama.cpp through llama-cpp-python, a GGUF mapped into memory, on the CPU."""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.peers.worker import OUR_OPENMP_SETTING, Step, Task, parse_task, run

NAME_BYTES = 128
LOG_LEVEL_ERROR = 4
"""Of ggml; the binding has no name for it."""


def reorders(task: Task) -> bool:
    """Whether weights may be put in another order, which takes memory for a copy."""
    return task.limit_bytes is None and not task.as_stored


def load(library: Any, task: Task) -> tuple[Any, Any]:
    """Model and context; the process ends with a sentence where the library refuses."""
    library.llama_backend_init()
    settings = library.llama_model_default_params()
    settings.n_gpu_layers = 0
    settings.load_mode = library.LLAMA_LOAD_MODE_MMAP
    # Weights in an order that suits the processor better are a copy, which no file stands behind:
    # under a limit of less than the model the kernel would end the process.
    settings.use_extra_bufts = reorders(task)
    model = library.llama_model_load_from_file(str(task.model).encode(), settings)
    if not model:
        sys.exit(f"{task.model}: llama.cpp does not load it")
    wanted = library.llama_context_default_params()
    wanted.n_ctx = task.context
    wanted.n_batch = wanted.n_ubatch = max(len(task.ids), 1)
    wanted.n_threads = wanted.n_threads_batch = task.threads
    context = library.llama_init_from_model(model, wanted)
    if not context:
        sys.exit(f"{task.model}: llama.cpp has no memory for a context of {task.context} tokens")
    return model, context


def step_of(library: Any, model: Any, context: Any) -> Step:
    """Greedy decoding."""
    vocabulary = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))

    def step(ids: Sequence[int]) -> int:
        tokens = (library.llama_token * len(ids))(*ids)
        failed = library.llama_decode(context, library.llama_batch_get_one(tokens, len(ids)))
        if failed:
            sys.exit(f"llama.cpp: decoding failed with {failed}")
        logits = library.llama_get_logits_ith(context, -1)
        return int(np.ctypeslib.as_array(logits, (vocabulary,)).argmax())

    return step


def main() -> None:
    """Run the worker."""
    task = parse_task(__doc__)
    os.environ.pop(OUR_OPENMP_SETTING, None)
    library: Any = importlib.import_module("llama_cpp")

    def tell_errors(level: int, text: bytes, _: Any) -> None:
        if level == LOG_LEVEL_ERROR:
            sys.stderr.write(text.decode("utf-8", "replace"))

    # Kept in a variable: the library calls it for as long as the process lives.
    callback = library.llama_log_callback(tell_errors)
    library.llama_log_set(callback, ctypes.c_void_p(0))
    model, context = load(library, task)
    name = ctypes.create_string_buffer(NAME_BYTES)
    library.llama_model_desc(model, name, NAME_BYTES)
    facts = {
        "description": name.value.decode("utf-8", "replace"),
        "parameters": library.llama_model_n_params(model),
        "weight_bytes": library.llama_model_size(model),
        "system": library.llama_print_system_info().decode("utf-8", "replace").strip(),
        "mmap": True,
        "reordered": reorders(task),
    }
    how = f"{facts['description']}, mmap{', weights as stored' if task.as_stored else ''}"
    memory = library.llama_get_memory(context)
    forget = functools.partial(library.llama_memory_clear, memory, True)
    run(task, step_of(library, model, context), forget, how, facts)
    library.llama_free(context)
    library.llama_model_free(model)


if __name__ == "__main__":
    main()
