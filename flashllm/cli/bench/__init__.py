"""`flashllm bench`: arguments and output; what is measured is in flashllm.bench."""
