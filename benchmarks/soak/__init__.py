"""`python -m benchmarks.soak`: hours of use of chat and engine, and what they take meanwhile."""
