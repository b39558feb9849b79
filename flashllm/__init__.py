"""Language models larger than RAM, on one machine: feed-forward weights stay on flash.

    with flashllm.open_model() as model:
        print(model.chat([{"role": "user", "content": "What does ocean mean?"}]).complete().text)

docs/python.md has more. `import flashllm` alone is cheap: what a name needs is imported when it is
used first.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashllm import errors
    from flashllm.engine.local import (
        AnswerMessage,
        AsyncGeneration,
        Context,
        Generation,
        Message,
        Model,
        Token,
        Usage,
    )
    from flashllm.engine.sampling import Sampling
    from flashllm.library.open import open_model
    from flashllm.options import ModelOptions, ReasoningOptions

# Read by OpenMP when torch is loaded: for how long its threads spin, waiting for each other, before
# they sleep (here about 0.2 ms, by default 15). Where other programs want the processor too, a
# thread that spins keeps the one that it waits for from running (docs/log/).
os.environ.setdefault("GOMP_SPINCOUNT", "4000")

__version__ = "0.2.0"
__all__ = [
    "AnswerMessage",
    "AsyncGeneration",
    "Context",
    "Generation",
    "Message",
    "Model",
    "ModelOptions",
    "ReasoningOptions",
    "Sampling",
    "Token",
    "Usage",
    "__version__",
    "errors",
    "open_model",
]


_MODULES = {
    "Sampling": "flashllm.engine.sampling",
    "ModelOptions": "flashllm.options",
    "ReasoningOptions": "flashllm.options",
    "open_model": "flashllm.library.open",
}
"""Where names are that are not of `flashllm.engine.local`."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "errors":
        return import_module("flashllm.errors")
    if name in __all__:
        return getattr(import_module(_MODULES.get(name, "flashllm.engine.local")), name)
    raise AttributeError(f"module 'flashllm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
