"""Measurements: what the disk gives, what a token costs, and what each part of the method saves."""
