"""Conversations that are kept: in SQLite, under names, found again, exported and imported.

Goals: nothing that was saved is lost when the process is killed; nobody who types waits for the
disk; a database that is locked, full, damaged or newer is an error in words and is left as it is.
Not here: what is on the screen, and which conversation is the current one.
"""
