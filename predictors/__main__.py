"""`python -m predictors DIR`: the table of a model's predictors, or their training."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from flashllm.errors import FlashllmError
from flashllm.progress import LineProgress

from .calibration_texts import TOKENS_MAX
from .report import read_report, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m predictors", description=__doc__)
    parser.add_argument("directory", type=Path, help="a converted model, or where its report lies")
    parser.add_argument("--train", type=Path, metavar="OUT", help="train, and write to OUT")
    parser.add_argument("--calibration", type=Path, metavar="FILE", help=".jsonl, .txt or .ids")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--tokens",
        type=int,
        default=TOKENS_MAX,
        help="the most tokens of the text to use (%(default)s)",
    )
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="unfinished work (OUT.predictors-work)"
    )
    options = parser.parse_args(arguments)
    try:
        if options.train is None:
            report = read_report(options.directory)
        else:
            from .train import train_predictors

            report = train_predictors(
                options.directory,
                options.train,
                options.calibration,
                LineProgress(),
                options.seed,
                tokens_max=options.tokens,
                work=options.work,
            )
    except FlashllmError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(table(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
