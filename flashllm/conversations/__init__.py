"""Saved conversations: stored in SQLite, named, searched, exported and imported.

Goals: nothing that was saved is lost when the process is killed; typing never waits for the disk; a
database that is locked, full, damaged or newer gives a clear error and is left as it is. Not here:
what is on the screen, and which conversation is the current one.
"""
