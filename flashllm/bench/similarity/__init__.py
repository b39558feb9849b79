"""Measures on a text what choosing keys and values rests on, layer by layer. Chooses none."""
