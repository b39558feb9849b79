"""`flashllm bench ablation`: what each part of the method saves."""
