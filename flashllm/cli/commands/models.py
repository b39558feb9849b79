"""`flashllm models`: published models that can be pulled, and what they would need here."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.cli.shared.flags import add_options
from flashllm.cli.shared.output import Output, remark
from flashllm.library.formatting import ASSUMED, UNKNOWN
from flashllm.settings.options import MODEL_OPTIONS
from flashllm.text_table import columns
from flashllm.units import format_bytes, format_ceiling, format_speed

if TYPE_CHECKING:
    from flashllm.library.known_models import KnownRow

HEAD = ("name", "family", "sparse by", "precision", "needs", "disk", "tok/s")
_LEFT = 4


def models(arguments: argparse.Namespace) -> int:
    """Prints the known models; returns the exit code."""
    from flashllm.library.known_models import known_rows
    from flashllm.library.library import usual_library
    from flashllm.system.filesystem import existing_parent

    library = usual_library(arguments.settings)
    place = existing_parent(library.home or Path())
    rows = list(
        known_rows(place, library.conditions(), dtype=arguments.dtype, everything=arguments.all)
    )
    output = Output()
    if arguments.json:
        for row in rows:
            output.json(row.to_json())
        return 0
    output.write(columns([HEAD, *map(_cells, rows)], left=_LEFT))
    _explain(rows)
    return 0


def _cells(row: KnownRow) -> tuple[str, ...]:
    made = row.preview
    needs, speed = made.smallest_ceiling_bytes, made.tokens_per_second
    mark = ASSUMED if made.assumed else ""
    return (
        row.model.name,
        row.model.family,
        row.sparsity,
        made.encoding.replace(", resident ones ", " + "),  # a column for it is narrow
        UNKNOWN if needs is None else format_ceiling(needs),
        format_bytes(made.disk_bytes),
        UNKNOWN if speed is None else f"{mark}{format_speed(speed)}",
    )


def _explain(rows: Sequence[KnownRow]) -> None:
    """What the columns say, and from what."""
    ceiling = rows[0].preview.ceiling_bytes if rows else None
    remark(
        "needs: the least --memory for `flashllm run`; disk: of the converted model; sparse by:"
        " what lets a token read a part of its neurons only. `flashllm pull NAME` gets one"
    )
    if any(row.preview.tokens_per_second is not None for row in rows) and ceiling is not None:
        remark(
            f"tok/s: expected in {format_ceiling(ceiling)}, from measured rates of disk and"
            f" machine; {ASSUMED}: and from what is assumed of the model"
        )
    else:
        remark("speeds are unknown here; `flashllm bench io` measures disk and machine")
    if ceiling is not None and any(
        (row.preview.smallest_ceiling_bytes or 0) > ceiling for row in rows
    ):
        remark(
            f"what needs more than the {format_ceiling(ceiling)} there are may fit in fewer bits:"
            " flashllm models --dtype int8, or int4"
        )
    if gated := [row.model.name for row in rows if row.model.gated]:
        remark(f"with a licence to accept first, as `pull` says: {', '.join(gated)}")


MODELS_EXAMPLES = """\
examples:
  flashllm models                               those that run well, and what they need here
  flashllm models --dtype int4 --memory 8GiB    the same in 4 bits and 8 GiB
  flashllm models --all                         every shape that `flashllm plan` knows by name
  flashllm pull qwen3-4b --convert              get one of them
"""
_OPTIONS = ("memory", "ctx_size", "kv_dtype", "profile")


def add_models_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `models`."""
    from flashllm.dtypes import DTYPES

    parser.add_argument("--all", action="store_true", help="all that are known by name")
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="in this encoding; int8, int4 and mxfp4 are rounded (default: as published)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = tuple(option for option in MODEL_OPTIONS if option.name in _OPTIONS)
    add_options(parser, "model", options)
