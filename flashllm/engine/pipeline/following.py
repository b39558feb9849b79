"""`python -m flashllm.engine.pipeline.following`: a stage on the machine of the first one.

What it is comes as a line of JSON on standard input, whose end is the end of the first stage.
"""

from __future__ import annotations

import json
import os
import sys
import threading

from flashllm.engine.pipeline.opening import follow_given
from flashllm.errors import EngineLost, FlashllmError


def main() -> int:
    """Follows until the first stage ends; the exit code is that of the error, if there is one."""
    given = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        follow_given(given)
    except FlashllmError as error:
        print(f"flashllm: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(EngineLost.exit_code)


if __name__ == "__main__":
    sys.exit(main())
