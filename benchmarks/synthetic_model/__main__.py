"""Writes a checkpoint of a known shape with random weights, for measuring speed without a download.

    python benchmarks/synthetic.py opt-1.3b DIR [--dtype f32|f16] [--layers N] [--seed S]

The text that such a model writes means nothing, but it moves as many bytes as the real one, and its
neurons behave as the paper reports of OPT-6.7B (arXiv 2312.11514): about 3 % are active a token,
more in late layers; few are active often, by a power law; what is active persists from token to
token, in clusters; low-rank predictors miss 5 % of the active and name 7 % of the others.

With the weights come `calibration.ids` and `heldout.ids`, texts of random token ids, a context a
line, and `predictors.safetensors`, the generator's own low-rank factors: they need no training.

    flashllm convert DIR OUT --predictors DIR/predictors.safetensors \\
        --calibration DIR/calibration.ids

Everything is marked synthetic, in config.json and in what is converted from it. Only blocks of rows
are in memory.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

# Threads make blocks; more of them inside each product would wait for each other. Read at import.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from flashllm.convert import progress_for

from benchmarks.synthetic_model.shapes import SHAPES, TORCH_DTYPES, shape_of
from benchmarks.synthetic_model.writing import write_checkpoint
from flashllm.cli.shared.flags import argument
from flashllm.errors import EXIT_INTERRUPTED, CannotCreate, FlashllmError
from flashllm.settings.values import parse_count


def main() -> int:
    """Write what the arguments ask for; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", metavar="SHAPE", help=f"one of {', '.join(SHAPES)}")
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory to create")
    parser.add_argument("--dtype", choices=sorted(TORCH_DTYPES), default="f16")
    parser.add_argument("--layers", type=int, help="number of layers, instead of the shape's own")
    parser.add_argument("--seed", type=argument(parse_count), default=0)
    options = parser.parse_args()
    start = time.monotonic()
    try:
        shape = shape_of(options.shape, options.layers, options.dtype, options.seed)
        weight_bytes = write_checkpoint(
            shape, options.directory, options.dtype, options.seed, progress_for()
        )
    except FlashllmError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: {options.directory}: {error.strerror or error}", file=sys.stderr)
        return CannotCreate.exit_code
    except KeyboardInterrupt:
        print("error: interrupted before anything was written", file=sys.stderr)
        return EXIT_INTERRUPTED
    seconds = time.monotonic() - start
    beside = "its gate needs no predictors"
    if not shape.spec.gated:
        beside = "the predictors beside them are the generator's own"
    print(
        f"{weight_bytes / 1e9:.2f} GB of synthetic weights in {seconds:.1f} s, "
        f"{weight_bytes / 1e6 / seconds:,.0f} MB/s; {beside}",
        file=sys.stderr,
    )
    print(options.directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
