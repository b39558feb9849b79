"""What the store asks of its tables (`schema`), by name."""

from __future__ import annotations

# Types are cast, since a damaged database may hold any, and the list must still be shown.
SUMMARY = """
    SELECT id, CAST(name AS TEXT), CAST(model AS TEXT), CAST(system AS TEXT),
           CAST(created AS REAL), CAST(updated AS REAL),
           (SELECT count(*) FROM turn WHERE turn.session = session.id),
           coalesce((SELECT CAST(substr(text, 1, 400) AS TEXT) FROM turn
                     WHERE turn.session = session.id ORDER BY turn.id LIMIT 1), '')
    FROM session
"""
MATCHING = """
    WHERE contains(name, :query) OR contains(system, :query)
       OR EXISTS (SELECT 1 FROM turn WHERE turn.session = session.id AND contains(text, :query))
"""
NAMES = "SELECT id, CAST(name AS TEXT) FROM session ORDER BY id"
NEWEST_FIRST = " ORDER BY updated DESC, id DESC"
NEWEST = "SELECT id FROM session ORDER BY updated DESC, id DESC LIMIT 1"
# With NULL for when it was created, the id alone decides.
TOUCH = """
    UPDATE session SET updated = :now
    WHERE id = :id AND coalesce(CAST(created AS REAL) = :created, 1)
"""
DELETE = """
    DELETE FROM session WHERE id = :id AND coalesce(CAST(created AS REAL) = :created, 1)
"""
INSERT_SESSION = """
    INSERT INTO session (name, model, system, settings, leaf, created, updated)
    VALUES (:name, :model, :system, :settings, :leaf, :created, :updated)
"""
SAVE_HEAD = """
    UPDATE session SET name = coalesce(:name, name), model = coalesce(:model, model),
           system = coalesce(:system, system), settings = coalesce(:settings, settings)
    WHERE id = :id
"""
UNCHANGED = {"name": None, "model": None, "system": None, "settings": None}
TURNS = """
    SELECT id, parent, role, text, ids, finish_reason, created, numbers
    FROM turn WHERE session = ? ORDER BY id
"""
SAVE_TURN = """
    INSERT INTO turn (session, id, parent, role, text, ids, finish_reason, created, numbers)
    VALUES (:session, :id, :parent, :role, :text, :ids, :finish_reason, :created, :numbers)
    ON CONFLICT (session, id) DO UPDATE SET
        parent = excluded.parent, role = excluded.role, text = excluded.text, ids = excluded.ids,
        finish_reason = excluded.finish_reason, numbers = excluded.numbers
"""
TURN = "SELECT created, role FROM turn WHERE session = :session AND id = :id"
SAME_TURN = """
    SELECT id FROM turn
    WHERE session = :session AND id > :id AND created = :created AND role = :role LIMIT 1
"""
FREE_ID = "SELECT max(id) + 1 FROM turn WHERE session = :session"
REMOVE_TURN = """
    WITH RECURSIVE below (id) AS (
        VALUES (:turn)
        UNION SELECT turn.id FROM turn JOIN below ON turn.parent = below.id
        WHERE turn.session = :session
    )
    DELETE FROM turn WHERE session = :session AND id IN below
"""
