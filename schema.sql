-- Onceward's schema for PostgreSQL 14 and later, whole and in one place.
--
-- postgres.Store.Migrate creates exactly this; a test compares the catalogs. Run this file instead if migrations are
-- not the application's business:
--
--     psql -v ON_ERROR_STOP=1 --single-transaction -f schema.sql
--
-- Another name for the schema: put it in place of "onceward" in the statements below, and give it to
-- postgres.WithSchema. The database must be encoded in UTF8.
--
-- Text that identifies something stands in its stored form: readable as it is, or "sha256:…" where text cannot hold it
-- (over 512 bytes, NUL bytes, not UTF-8). It is compared as bytes: COLLATE "C" is what makes that true of the order,
-- too, which batches rely on to take their locks in one order everywhere.
--
-- Times are the database's clock_timestamp(). now() is the start of the transaction, and lags in a long one.

CREATE SCHEMA onceward;

-- Which migrations were applied. Read by Check and Migrate.
CREATE TABLE onceward.migration (
    version    integer     NOT NULL,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT migration_pkey PRIMARY KEY (version)
);
COMMENT ON TABLE onceward.migration IS 'Migrations that were applied';

-- The record: (scope, key) was claimed, so its work is done or is being done by the transaction that inserted it.
-- Inserted once, never updated, deleted when it has expired.
CREATE TABLE onceward.record (
    -- What the key is unique within (consumer and source), and the identity of the intent (the message's ID).
    scope       text        COLLATE "C" NOT NULL,
    key         text        COLLATE "C" NOT NULL,
    -- Hash of what the intent was. The same key with another one is refused. NULL: not compared.
    fingerprint bytea,
    -- For people: nothing reads it.
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- From here on Prune deletes the row. Set at the claim, by this database's clock.
    expires_at  timestamptz NOT NULL,
    -- The claim: INSERT … ON CONFLICT (scope, key) DO NOTHING.
    CONSTRAINT record_pkey PRIMARY KEY (scope, key)
);
COMMENT ON TABLE onceward.record IS 'One row for each message or request whose effects are committed';

-- Prune: the oldest expired rows first. Rows arrive in about the order in which they expire, so inserts always touch the
-- index's last page and fill it: it costs little, and stays small.
CREATE INDEX record_expires_at ON onceward.record (expires_at);

-- Failed attempts, counted outside the transaction that failed, or its rollback would take the count along.
CREATE TABLE onceward.attempt (
    scope      text        COLLATE "C" NOT NULL,
    key        text        COLLATE "C" NOT NULL,
    attempts   integer     NOT NULL,
    -- The last error.
    error      text        NOT NULL,
    first_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- From here on the count starts again at one, and Prune deletes the row.
    expires_at timestamptz NOT NULL,
    -- CountAttempt: INSERT … ON CONFLICT (scope, key) DO UPDATE.
    CONSTRAINT attempt_pkey PRIMARY KEY (scope, key)
);
COMMENT ON TABLE onceward.attempt IS 'Failed attempts at a message or request, and the last error';

-- Prune: the oldest expired rows first.
CREATE INDEX attempt_expires_at ON onceward.attempt (expires_at);

-- Messages that were set aside, whole, until a person redrives or discards them.
CREATE TABLE onceward.dead_letter (
    -- The order in which they were written.
    number       bigint      GENERATED ALWAYS AS IDENTITY,
    consumer     text        COLLATE "C" NOT NULL,
    topic        text        COLLATE "C" NOT NULL,
    source       text        COLLATE "C" NOT NULL,
    message_id   text        COLLATE "C" NOT NULL,
    -- attempts, permanent, missing_id, too_old, id_reused, unfinished, behind
    reason       text        NOT NULL,
    -- The last error, and how often the handler failed.
    error        text        NOT NULL,
    attempts     integer     NOT NULL,
    -- The ordering key. NULL: the message has none, which is not the same as an empty one.
    message_key  text        COLLATE "C",
    -- Read it with convert_from(payload, 'UTF8'). NULL: none (in Kafka a tombstone).
    payload      bytea,
    -- [["name","value"],["name",null]]; {"base64":"…"} in place of a string that JSON text cannot hold.
    headers      json,
    -- Where the broker holds it: topic/partition/offset in Kafka.
    position     text        NOT NULL,
    -- The producer's or broker's timestamp.
    message_time timestamptz,
    -- Messages with the same consumer, topic and key wait behind this one.
    parks_key    boolean     NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- What the stored form above does not give back, in base64:
    -- {"id":"…","source":"…","topic":"…","key":"…","position":"…"}. NULL for almost every message.
    raw          json,
    -- TakeDeadLetter, FailDeadLetter: by number.
    CONSTRAINT dead_letter_pkey PRIMARY KEY (number)
);
COMMENT ON TABLE onceward.dead_letter IS 'Messages set aside until a person redrives or discards them';

-- DeadLetters, DiscardDeadLetters: one consumer's, oldest first.
CREATE INDEX dead_letter_consumer ON onceward.dead_letter (consumer, number);

-- DeadLetters by message: what became of this order?
CREATE INDEX dead_letter_message ON onceward.dead_letter (consumer, message_id);

-- TakeDeadLetter, DiscardDeadLetters: is there an older one with the same key, or any at all?
CREATE INDEX dead_letter_parked ON onceward.dead_letter (consumer, topic, message_key, number) WHERE parks_key;

-- Keys behind which messages wait: one row as long as any dead letter parks the key. Consumers lock the row FOR KEY
-- SHARE while they set a message aside behind it; redrive and discard lock it FOR UPDATE before they free it.
CREATE TABLE onceward.parked_key (
    consumer    text        COLLATE "C" NOT NULL,
    topic       text        COLLATE "C" NOT NULL,
    message_key text        COLLATE "C" NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- ParkedKeys: is any of these keys parked?
    CONSTRAINT parked_key_pkey PRIMARY KEY (consumer, topic, message_key)
);
COMMENT ON TABLE onceward.parked_key IS 'Keys whose messages wait behind a dead letter';

-- Last, so that Check and Migrate know that all of the above is there.
INSERT INTO onceward.migration (version, name) VALUES (1, 'inbox');
