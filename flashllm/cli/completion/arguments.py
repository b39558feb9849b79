"""Arguments of `flashllm completion`."""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh", "fish")
COMPLETION_EXAMPLES = """\
examples:
  eval "$(flashllm completion bash)"            in ~/.bashrc
  source <(flashllm completion zsh)             in ~/.zshrc, after compinit
  flashllm completion fish > ~/.config/fish/completions/flashllm.fish
"""


def add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `completion`."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    # What the scripts ask for, while somebody types.
    for what in ("sessions", "models", "checkpoints"):
        parser.add_argument(f"--{what}", action="store_true", help=argparse.SUPPRESS)
