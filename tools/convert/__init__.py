"""Checkpoints to flash layout, and checks of the result.

`convert` writes a converted model, `reorder` rewrites one in another order, `describe` says what it
would be, `verify` checks one, `demo_model` gives the one that comes with the package. The only
package that knows names of families and of Hugging Face.
"""

from __future__ import annotations

from flashllm.progress import Progress, ProgressKind, progress_for

from .demo import demo_directory, demo_model, demo_source
from .families.spec_from_config import describe
from .output.destination import check_destination
from .output.reorder import reorder
from .phases import ConversionPlan, Learning, PhaseWork, conversion_phases
from .pipeline import convert
from .source.checkpoint import weight_files
from .source.files import source_file
from .verify.report import Problem, VerifyReport
from .verify.verification import verify

__all__ = [
    "ConversionPlan",
    "Learning",
    "PhaseWork",
    "Problem",
    "Progress",
    "ProgressKind",
    "VerifyReport",
    "check_destination",
    "conversion_phases",
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
