"""`python -m benchmarks.peers`: flashllm next to other programs on one machine."""
