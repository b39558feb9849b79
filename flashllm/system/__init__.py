"""The operating system: memory, file systems, paths, the log, clocks.

Nothing here knows a model.
"""
