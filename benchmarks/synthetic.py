"""`python -m benchmarks.synthetic`, or this file: a short name of `benchmarks.synthetic_model`."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run as a file, whose folder is on the path instead of the folder above
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.synthetic_model.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
