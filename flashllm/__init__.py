"""Language models larger than RAM, on one machine: feed-forward weights stay on flash.

    with flashllm.open_model() as model:
        print(model.chat([{"role": "user", "content": "What does ocean mean?"}]).complete().text)

docs/python.md has more. `import flashllm` alone is cheap: numpy is imported when a model is opened.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from flashllm import errors
from flashllm.engine.sampling import Sampling
from flashllm.options import ModelOptions, ReasoningOptions

if TYPE_CHECKING:
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
    from flashllm.library.open import open_model

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


def __getattr__(name: str) -> Any:
    if name == "open_model":
        from flashllm.library.open import open_model

        return open_model
    if name in __all__:
        from flashllm.engine import local

        return getattr(local, name)
    raise AttributeError(f"module 'flashllm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
