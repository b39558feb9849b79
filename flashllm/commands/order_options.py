"""What concerns the order of neurons on flash: `convert --order`, and `reorder`."""

from __future__ import annotations

import argparse
from pathlib import Path

REORDER_EXAMPLES = """\
examples:
  flashllm reorder ~/big.flash ~/big.ordered --calibration some-text.txt
"""


def add_order(parser: argparse.ArgumentParser) -> None:
    """What `convert` takes."""
    parser.add_argument(
        "--order",
        choices=("none", "coactivation"),
        default="none",
        help="of neurons on flash: the checkpoint's, or those together that the calibration text "
        "needs together, so that fewer and larger reads are made (default: none)",
    )


def add_reorder_arguments(parser: argparse.ArgumentParser) -> None:
    """What `reorder` takes."""
    parser.add_argument("source", type=Path, metavar="SRC", help="a converted model")
    parser.add_argument("destination", type=Path, metavar="DST", help="directory to create")
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE", help="text that says what is needed together"
    )
