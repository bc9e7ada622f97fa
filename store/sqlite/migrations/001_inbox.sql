-- The tables of the embedded store, version 1. Times are microseconds since
-- 1970 (UTC) on SQLite's clock, which ticks in milliseconds.

-- Which version of this file was applied. A table of our own, because
-- PRAGMA user_version belongs to the application that owns the file.
CREATE TABLE onceward_schema (
    version INTEGER NOT NULL
) STRICT;
INSERT INTO onceward_schema (version) VALUES (1);

-- The record: (scope, key) was claimed by a transaction that committed. Both
-- stand in their stored form (idempotency.StoredForm): always plain text.
CREATE TABLE onceward_record (
    scope       TEXT NOT NULL,
    key         TEXT NOT NULL,
    fingerprint BLOB,             -- NULL: the claim had none
    claimed_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX onceward_record_expires_at ON onceward_record (expires_at);

-- Failed attempts at something that is not recorded yet. Written in a
-- transaction of its own, so that the count survives the rollback of the work.
CREATE TABLE onceward_attempt (
    scope      TEXT NOT NULL,
    key        TEXT NOT NULL,
    attempts   INTEGER NOT NULL,
    cause      ANY NOT NULL,      -- the latest error
    counted_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX onceward_attempt_expires_at ON onceward_attempt (expires_at);

-- Messages that were set aside. Columns of type ANY hold text where the value
-- is plain text and a blob where it is not (NUL bytes, not UTF-8), so that a
-- person can read them and every byte is kept.
-- AUTOINCREMENT: a number that was redriven or discarded never comes back for
-- another message.
CREATE TABLE onceward_dead_letter (
    number     INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer   ANY NOT NULL,
    reason     TEXT NOT NULL,
    error      ANY NOT NULL,
    attempts   INTEGER NOT NULL,
    message_id ANY NOT NULL,
    source     ANY NOT NULL,
    topic      ANY NOT NULL,
    key        BLOB,              -- NULL: no key; empty: an empty key
    payload    BLOB,
    headers    TEXT NOT NULL,     -- JSON: [{"name": base64, "value": base64 or null}, …]
    time       INTEGER,           -- NULL: unknown
    position   ANY NOT NULL,
    parks_key  INTEGER NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX onceward_dead_letter_consumer ON onceward_dead_letter (consumer, number);

-- A key is parked for as long as a row stands here.
CREATE INDEX onceward_dead_letter_parked ON onceward_dead_letter (consumer, topic, key, number) WHERE parks_key;
