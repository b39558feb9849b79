"""Checkpoints to flash layout, and checks of the result.

`convert` writes a converted model, `reorder` writes one anew in another order, `describe` says what
it would be, `verify` reads one through, `demo_model` gives the one that comes with the package. The
only package that knows names of families and of Hugging Face.
"""

from __future__ import annotations

from .demo import demo_model
from .description import describe
from .pipeline import convert
from .progress import Progress, progress_for
from .reorder import reorder
from .report import Problem, VerifyReport
from .verification import verify

__all__ = [
    "Problem",
    "Progress",
    "VerifyReport",
    "convert",
    "demo_model",
    "describe",
    "progress_for",
    "reorder",
    "verify",
]
