"""`flashllm completion`: scripts that complete the command line in a shell."""
