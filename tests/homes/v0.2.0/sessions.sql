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
INSERT INTO "session" VALUES(1,'','/home/ada/models/first.flash','','{"max_tokens": 20, "temp": 0.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "seed": 3}',4,1.79548037778483581547e+09,1.79548038194225931165e+09);
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
INSERT INTO "turn" VALUES(1,1,NULL,'user','What does ocean mean?',X'',NULL,1.79548037146242356297e+09,'{}');
INSERT INTO "turn" VALUES(1,2,1,'assistant','ocean (noun): a large body of water constituting a principal part of the hydrosp',X'C30900000A0100001401000009010000080100000B010000C1010000AE01000006010000F60100002F040000200100000B0100002F0700003F010000060100000C010000E40D00003503000057010000','length',1.79548037146243476868e+09,'{"prompt_tokens": 9, "prefill": {"tokens": 9, "reused_tokens": 0, "wall_ns": 70976275, "bytes_read": 6291456}, "decode": {"tokens": 19, "wall_ns": 362463303, "tokens_per_second": 52.419099651585974, "parts_ns": {"predict": 20478008, "plan": 781180, "io_exposed": 218973753, "manage": 4587765, "attention": 42260258, "ffn": 44395535, "head": 7292788, "sample": 12787553, "other": 10906463}, "bytes_read": 3067904, "bytes_useful": 2479104, "reads": 2099, "hit_rate": 0.7818784007570381, "hits": 6610, "misses": 1844, "passes": 0, "spilled": 0, "guessed": 1239, "guesses_used": 662, "io_busy_ns": 222642992, "io_bytes_per_second": 13779477.056255154, "queue_depth_mean": 8.423772673698169, "queue_depth_max": 32, "read_sizes": {"1024": 1857, "2048": 89, "4096": 128, "8192": 24, "16384": 1}}, "tokens": 20}');
INSERT INTO "turn" VALUES(1,3,2,'user','And river?',X'',NULL,1.79548037882296872141e+09,'{}');
INSERT INTO "turn" VALUES(1,4,3,'assistant','river (noun): a large natural stream of water (larger than a creek)',X'6F0500000A0100001401000009010000080100000B010000C101000086020000C007000006010000F60100000A0100002A0100009F010000610100004C010000B80100000B0100005B0B000009010000','length',1.79548037882297873498e+09,'{"prompt_tokens": 35, "prefill": {"tokens": 35, "reused_tokens": 0, "wall_ns": 36702271, "bytes_read": 6291456}, "decode": {"tokens": 19, "wall_ns": 275879557, "tokens_per_second": 68.87063400641897, "parts_ns": {"predict": 15716831, "plan": 602051, "io_exposed": 130380942, "manage": 4463178, "attention": 47122192, "ffn": 47011835, "head": 6971337, "sample": 12460743, "other": 11150448}, "bytes_read": 1295360, "bytes_useful": 1146880, "reads": 1047, "hit_rate": 0.8905624852906566, "hits": 7568, "misses": 930, "passes": 0, "spilled": 0, "guessed": 420, "guesses_used": 230, "io_busy_ns": 112137281, "io_bytes_per_second": 11551555.27625108, "queue_depth_mean": 4.374670052861367, "queue_depth_max": 31, "read_sizes": {"1024": 979, "2048": 23, "4096": 43, "8192": 2}}, "tokens": 20}');
CREATE INDEX turn_parent ON turn (session, parent);
CREATE INDEX session_updated ON session (updated);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('session',1);
COMMIT;
