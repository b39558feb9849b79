"""Language models larger than RAM, on one machine: feed-forward weights stay on flash.

`import flashllm` alone is cheap: torch is imported when a model is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashllm.sampling import Sampling

if TYPE_CHECKING:
    from flashllm.engine import Generation, Model, Token, open_model

__version__ = "0.2.0"
__all__ = ["Generation", "Model", "Sampling", "Token", "__version__", "open_model"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from flashllm import engine

        return getattr(engine, name)
    raise AttributeError(f"module 'flashllm' has no attribute {name!r}")
