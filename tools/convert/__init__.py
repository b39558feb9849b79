"""Checkpoints to flash layout, and checks of the result.

`convert` writes a converted model, `reorder` writes one anew in another order, `describe` says what
it would be, `verify` reads one through, `demo_model` gives the one that comes with the package. The
only package that knows names of families and of Hugging Face.
"""

from __future__ import annotations

from .checkpoint import weight_files
from .demo import demo_directory, demo_model, demo_source
from .description import describe
from .destination import check_destination
from .files import source_file
from .pipeline import convert
from .progress import Progress, ProgressKind, progress_for
from .reorder import reorder
from .report import Problem, VerifyReport
from .verification import verify

__all__ = [
    "Problem",
    "Progress",
    "ProgressKind",
    "VerifyReport",
    "check_destination",
    "convert",
    "demo_directory",
    "demo_model",
    "demo_source",
    "describe",
    "progress_for",
    "reorder",
    "source_file",
    "verify",
    "weight_files",
]
