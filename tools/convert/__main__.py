"""`python -m tools.convert SRC DST`: a checkpoint to a converted model, from a clone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from flashllm.dtypes import DTYPES, PREDICTOR_DTYPES
from flashllm.errors import FlashllmError

from . import convert, progress_for


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert as the arguments ask; returns the exit code."""
    parser = argparse.ArgumentParser(prog="convert", description=__doc__)
    parser.add_argument("source", type=Path, help="directory of the checkpoint, or a .gguf")
    parser.add_argument("destination", type=Path, help="directory to create")
    parser.add_argument("--dtype", choices=DTYPES, help="default: as the source")
    parser.add_argument("--resident-dtype", choices=DTYPES, help="default: as --dtype")
    parser.add_argument("--predictor-dtype", choices=PREDICTOR_DTYPES, help="default: f16")
    parser.add_argument("--act", help="activation, where config.json is wrong about it")
    parser.add_argument("--fatrelu-threshold", type=float, help="what relu must exceed")
    parser.add_argument(
        "--predictors", default="none", help="(lossy) none, train, checkpoint, or a path"
    )
    parser.add_argument("--calibration", type=Path, help="text to train the predictors on")
    parser.add_argument("--allow-pickle", action="store_true", help="read weights from pickles")
    parser.add_argument("--requantise", action="store_true", help="(lossy) round blocks again")
    options = parser.parse_args(arguments)
    try:
        convert(
            options.source,
            options.destination,
            dtype=options.dtype,
            act=options.act,
            fatrelu_threshold=options.fatrelu_threshold,
            predictors=options.predictors,
            calibration=options.calibration,
            resident_dtype=options.resident_dtype,
            predictor_dtype=options.predictor_dtype,
            allow_pickle=options.allow_pickle,
            requantise=options.requantise,
            progress=progress_for(),
        )
    except FlashllmError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(options.destination)
    return 0


if __name__ == "__main__":
    sys.exit(main())
