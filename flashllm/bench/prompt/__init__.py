"""`flashllm bench prompt`: how soon the first token comes, and what the machine would allow."""
