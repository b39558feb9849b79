"""`flashllm bench tokens`: what a token costs, and what the machine would allow."""
