"""Conversations that are kept: in SQLite, under names, found again, exported and imported.

Goals: nothing that was saved is lost when the process is killed; nobody who types waits for the
disk; a database that is locked, full, damaged or newer is an error in words and is left as it is.
Not here: what is on the screen, and which conversation is the current one.
"""

from __future__ import annotations

from flashllm.sessions.records import Session, SessionSummary
from flashllm.sessions.store import SessionStore
from flashllm.sessions.writer import NewSession, SessionWriter

__all__ = ["NewSession", "Session", "SessionStore", "SessionSummary", "SessionWriter"]
