"""The profile of this machine's disk and memory, and whether it is still valid.

Measures nothing.
"""
