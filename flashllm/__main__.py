"""`python -m flashllm`."""

import sys

from flashllm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
