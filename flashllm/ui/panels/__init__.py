"""Panels next to the conversation: I/O and the map of neurons."""
