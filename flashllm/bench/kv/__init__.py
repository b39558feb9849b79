"""Compares policies of which keys and values are seen, on a text. Chooses none."""
