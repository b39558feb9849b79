"""`flashllm run`: one prompt, one answer."""
