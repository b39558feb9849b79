"""`python -m benchmarks`: `flashllm bench tokens` with the demo, which needs nothing else."""

import sys

from flashllm.cli.main import main

sys.exit(main(["bench", "tokens", *sys.argv[1:]]))
