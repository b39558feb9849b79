"""`flashllm bench cache`: cache policies replayed on recorded active sets. Opens no model."""
