"""The terminal application: above the engine, whose public names are all that it knows of it.

The engine lives on one thread, which posts messages; their handlers own the widgets. Everything
that a model, a checkpoint or a user wrote is sanitized before it is shown, and never read as
markup.
"""
