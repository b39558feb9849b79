"""Checkpoints with random weights and calibrated activity: what `benchmarks/synthetic.py` writes.

Goal: the bytes of a real model, and of its neurons the statistics that decide how fast streaming
is. Not a goal: text that means anything, or quality that could be compared with a real model's.
"""
