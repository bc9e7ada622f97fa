-- Version 2: the outbox. Times are microseconds since 1970 (UTC) on SQLite's
-- clock, as in version 1.

-- The log. A row is an event; it is never updated, and deleted only when it is
-- older than every retention, every relay that is not abandoned has passed it and
-- none has set it aside. SQLite has one writer, so the numbers are in the order of
-- the commits. AUTOINCREMENT: a number never comes back, also after the last rows
-- were deleted.
--
-- Programs in any language may write events by
--
--     INSERT INTO onceward_event (topic, key, payload) VALUES (?, ?, ?)
--
-- inside the transaction of the work that they belong to, with id, headers and
-- deliver_after if they need them, and never with a number. Defaults and checks
-- keep to what SQLite 3.38 (2022) knows, because the other program's SQLite runs them.
CREATE TABLE onceward_event (
    number        INTEGER PRIMARY KEY AUTOINCREMENT,

    topic         TEXT NOT NULL CHECK (length(CAST(topic AS BLOB)) BETWEEN 1 AND 512),

    -- The default is a UUIDv7.
    id            TEXT NOT NULL CHECK (length(CAST(id AS BLOB)) BETWEEN 1 AND 512) DEFAULT (printf(
        '%08x-%04x-7%03x-%x%03x-%012x',
        (strftime('%s', 'now') * 1000 + substr(strftime('%f', 'now'), 4)) >> 16,
        (strftime('%s', 'now') * 1000 + substr(strftime('%f', 'now'), 4)) & 65535,
        random() & 4095, 8 + (random() & 3), random() & 4095, random() & 281474976710655)),

    created_at    INTEGER NOT NULL DEFAULT (strftime('%s', 'now') * 1000000 + substr(strftime('%f', 'now'), 4) * 1000)
        CHECK (created_at BETWEEN -62135596800000000 AND 253402300800000000), -- the years 1 to 9999

    deliver_after INTEGER CHECK (deliver_after BETWEEN -62135596800000000 AND 253402300800000000), -- NULL: at once

    -- Bytes, or text that stands for its bytes in UTF-8. NULL: no key; empty: an empty key.
    key           ANY CHECK (typeof(key) IN ('blob', 'text', 'null')),

    -- JSON: [{"name": "a", "value": "text"}, {"name": "b", "base64": "AP8="}, …]. NULL: none.
    headers       TEXT CHECK (headers IS NULL OR json_valid(headers)),

    payload       ANY CHECK (typeof(payload) IN ('blob', 'text', 'null'))
) STRICT;

-- A relay, with the settings that all its instances have in common.
CREATE TABLE onceward_relay (
    name       TEXT PRIMARY KEY,
    lanes      INTEGER NOT NULL CHECK (lanes BETWEEN 1 AND 1024),
    topics     TEXT NOT NULL,     -- JSON: an array of patterns, empty for all topics
    policy     TEXT NOT NULL,
    retention  INTEGER NOT NULL,  -- how long events stay at least, from when they were written
    created_at INTEGER NOT NULL,

    -- When the relay was last known to be in use: an instance had a lease or was
    -- about to. A time in which no relay ran is added, so that it does not count.
    -- NULL: since it was created.
    seen_at    INTEGER
) STRICT, WITHOUT ROWID;

-- A process that runs a relay.
CREATE TABLE onceward_relay_instance (
    relay       TEXT NOT NULL,
    name        TEXT NOT NULL,
    lease_until INTEGER NOT NULL,
    PRIMARY KEY (relay, name)
) STRICT, WITHOUT ROWID;

-- A lane: events up to last are handled. The owner's lease is that of its
-- instance; the epoch says which of its owners an update is from.
CREATE TABLE onceward_relay_lane (
    relay TEXT NOT NULL,
    lane  INTEGER NOT NULL,
    owner TEXT,                   -- NULL: nobody
    epoch INTEGER NOT NULL,
    last  INTEGER NOT NULL,
    PRIMARY KEY (relay, lane)
) STRICT, WITHOUT ROWID;

-- Events that a relay has set aside. Their row in the log stays as long.
CREATE TABLE onceward_aside (
    relay        TEXT NOT NULL,
    number       INTEGER NOT NULL,
    lane         INTEGER NOT NULL,
    state        TEXT NOT NULL,
    key_hash     TEXT,            -- NULL: the event has no key
    due_at       INTEGER,         -- of what is delayed or retrying
    attempts     INTEGER NOT NULL,
    error        ANY NOT NULL,    -- text, or a blob where it is not plain text
    set_aside_at INTEGER NOT NULL,
    PRIMARY KEY (relay, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX onceward_aside_due ON onceward_aside (relay, due_at, number) WHERE due_at IS NOT NULL;
CREATE INDEX onceward_aside_key ON onceward_aside (relay, state, key_hash, number);

UPDATE onceward_schema SET version = 2;
