"""`flashllm bench io`: what a disk gives, point by point.

Reads, and writes only where it is asked to.
"""
