"""`python app.py` opens the chat; arguments are those of `flashllm chat`."""

import sys

from flashllm.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["chat", *sys.argv[1:]]))
