"""What a conversion has made: size, time, speed, its predictors' errors, and what to type next."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashllm.flash.file_names import PREDICTORS_FILE
from flashllm.flash.model_files import ModelFiles
from flashllm.library.names import usual_names
from flashllm.planning.model_facts import TOKENIZER_FILES
from flashllm.planning.model_info import describe
from flashllm.units import format_bytes, format_duration, format_rate


@dataclass(frozen=True, slots=True)
class ConversionSummary:
    """A model that was just written."""

    directory: Path
    size_bytes: int
    seconds: float
    has_predictors: bool
    has_tokenizer: bool
    errors: dict[str, float]
    """Of the predictors, where they were measured: means of the layers' shares, and the ratio of
    perplexities."""
    typed: str
    """What stands for it on the command line: its name, or its path."""

    @property
    def bytes_per_second(self) -> float:
        """Bytes of the model per second, training included."""
        return self.size_bytes / max(self.seconds, 1e-3)

    @property
    def next_command(self) -> str:
        """What to type next."""
        model = shlex.quote(self.typed)
        if self.has_tokenizer:
            return f"flashllm chat {model}"
        return f"flashllm run {model} --raw --ids 1,2,3"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "directory": str(self.directory),
            "size_bytes": self.size_bytes,
            "seconds": round(self.seconds, 3),
            "has_predictors": self.has_predictors,
            "has_tokenizer": self.has_tokenizer,
            "errors": self.errors,
            "next": self.next_command,
        }


def summarize(directory: Path, seconds: float) -> ConversionSummary:
    """The summary of a model that a conversion has made in `seconds`."""
    model = ModelFiles(directory)
    files = model.manifest.files
    info = describe(model, any(name in files for name in TOKENIZER_FILES))
    shares = info.activity or {}
    names = ("false_negatives", "false_positives", "perplexity_ratio")
    return ConversionSummary(
        directory=directory,
        size_bytes=sum(record.bytes for record in files.values()),
        seconds=seconds,
        has_predictors=PREDICTORS_FILE in files,
        has_tokenizer=info.has_tokenizer,
        errors={name: shares[name] for name in names if isinstance(shares.get(name), float)},
        typed=usual_names().typed(directory),
    )


def format_summary(summary: ConversionSummary) -> list[str]:
    """Lines: size, time and speed; the predictors' errors; the next command."""
    lines = [
        f"{format_bytes(summary.size_bytes)} written in {format_duration(summary.seconds)},"
        f" {format_rate(summary.bytes_per_second)}"
    ]
    if summary.has_predictors and summary.errors:
        lines.append(f"predictors: {_format_errors(summary.errors)}")
    lines.append(f"next: {summary.next_command}")
    return lines


def _format_errors(errors: dict[str, float]) -> str:
    """Errors of predictors as a sentence that says what they are means of."""
    words = {
        "false_negatives": "{:.2%} of the active neurons missed",
        "false_positives": "{:.2%} of the others read needlessly",
    }
    shares = [words[name].format(errors[name]) for name in words if name in errors]
    parts = [f"{' and '.join(shares)} (means of the layers)"] if shares else []
    if "perplexity_ratio" in errors:
        parts.append(f"perplexity {errors['perplexity_ratio']:.3f} of the exact model's")
    return ", ".join(parts)
