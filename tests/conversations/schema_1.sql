-- What the first version wrote, as `iterdump` of Python's sqlite3 shows it, and its two marks.
PRAGMA application_id = 1179405389;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE session (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL,
        model TEXT NOT NULL,
        system TEXT NOT NULL,
        settings TEXT NOT NULL,         -- JSON, an object
        leaf INTEGER,                   -- last turn of the branch that is shown
        created REAL NOT NULL,          -- seconds since 1970
        updated REAL NOT NULL
    );
INSERT INTO "session" VALUES(3,'Größe 100%','/models/a','Be brief.','{"temp": 0.5}',2,1700000000.0,1700000003.0);
CREATE TABLE turn (
        session INTEGER NOT NULL REFERENCES session (id) ON DELETE CASCADE,
        id INTEGER NOT NULL,            -- within its session; a parent's is smaller
        parent INTEGER,                 -- NULL: a first question
        role TEXT NOT NULL,             -- user, assistant
        text TEXT NOT NULL,
        ids BLOB NOT NULL,              -- tokens of an answer, 4 bytes each, little-endian
        finish_reason TEXT,             -- NULL: still being written, or cut off
        created REAL NOT NULL,
        numbers TEXT NOT NULL,          -- JSON, an object
        UNIQUE (session, id)
    );
INSERT INTO "turn" VALUES(3,1,NULL,'user','What is an ocean?',X'',NULL,1700000000.25,'{}');
INSERT INTO "turn" VALUES(3,2,1,'assistant','It''s water.
Much.',X'010000007011010003000000','stop',1700000001.5,'{"decode": {"tokens": 3}}');
INSERT INTO "turn" VALUES(3,3,NULL,'user','What is a sea?',X'',NULL,1700000002.0,'{}');
CREATE INDEX turn_parent ON turn (session, parent);
CREATE INDEX session_updated ON session (updated);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('session',3);
COMMIT;
