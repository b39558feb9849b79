"""What strangers wrote, made harmless: text for a terminal, strict JSON.

Nothing here knows a model.
"""
