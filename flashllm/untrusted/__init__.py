"""Untrusted input made harmless: text for a terminal, strict JSON.

Nothing here knows a model.
"""
