"""Feed-forward weights in DRAM: slots, which bundles stay in them, and reads into them.

Computes nothing.
"""
