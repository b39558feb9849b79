"""What each command does. `flashllm.cli` reads the arguments and imports one of these."""
