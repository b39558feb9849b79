"""`python -m benchmarks.chat`: what a user of the chat waits for."""
