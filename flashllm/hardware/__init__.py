"""What was measured of this machine: the disk's profile and whether it is still true.

Measures nothing.
"""
