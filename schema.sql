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

-- The order of events. CACHE 1: with more, connections keep numbers and use them after larger ones, which no relay would
-- find. Not owned by the table: TRUNCATE … RESTART IDENTITY would give numbers again that relays have passed.
CREATE SEQUENCE onceward.outbox_number AS bigint CACHE 1 NO CYCLE;

-- The log: events, written once in the transaction they belong to. Publishing updates and deletes nothing here; PruneLog
-- deletes what is older than every retention, has been passed by every relay that is not abandoned, and is set aside by
-- none. Any program may write events:
--
--     INSERT INTO onceward.outbox (topic, key, payload, headers) VALUES ('orders', 'order-7', '{}', '[["tenant","a"]]');
--
-- All other columns are the log's own: grant INSERT on those above, message_id and deliver_after only, and USAGE on the
-- sequence, and nobody can get the order wrong.
CREATE TABLE onceward.outbox (
    -- The order of writing, with gaps. The CASE is what makes reading without locks possible: it takes the transaction's
    -- number before the event's, also where a trigger sleeps in between. Then transactions that begin later write larger
    -- numbers, always.
    number        bigint      NOT NULL DEFAULT CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('onceward.outbox_number') END,
    -- The transaction that wrote the row: whether a relay has seen it is a question to a snapshot.
    xid           xid8        NOT NULL DEFAULT pg_current_xact_id(),
    -- A relay with N lanes publishes it in lane slot % N: one key is always in one lane. Without a key, any.
    slot          smallint    NOT NULL GENERATED ALWAYS AS (
        (CASE WHEN key IS NULL THEN number ELSE hashtext(encode(key, 'hex') COLLATE "C") END OPERATOR(pg_catalog.&) 1023)::smallint) STORED,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Not to be published before. NULL: at once.
    deliver_after timestamptz,
    -- The identity of the event: a UUIDv7 unless the writer has one.
    message_id    text        COLLATE "C" NOT NULL DEFAULT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        PLACING substring(int8send(floor(date_part('epoch', clock_timestamp()) OPERATOR(pg_catalog.*) 1000)::bigint) FROM 3) FROM 1), 52, 1), 53, 1), 'hex')::uuid::text,
    topic         text        COLLATE "C" NOT NULL,
    -- Events with the same topic and key are published in their order. NULL: no order.
    key           bytea,
    payload       bytea,
    -- [["name","value"],["name",null]]; {"base64":"…"} in place of a string that JSON text cannot hold. Of another form:
    -- the event is a dead letter.
    headers       json,
    -- Reading: the rows of new transactions, in order.
    CONSTRAINT outbox_pkey PRIMARY KEY (number),
    CONSTRAINT outbox_topic_check CHECK (topic <> ''),
    CONSTRAINT outbox_created_at_check CHECK (isfinite(created_at) AND created_at < '10000-01-01 00:00:00+00'),
    CONSTRAINT outbox_deliver_after_check CHECK (isfinite(deliver_after) AND deliver_after < '10000-01-01 00:00:00+00')
);
COMMENT ON TABLE onceward.outbox IS 'Events, written once in the transaction they belong to; publishing changes nothing here';

-- Reading: the rows of transactions that were open when others of about the same time were read.
CREATE INDEX outbox_xid ON onceward.outbox (xid, number);

-- Where the numbers of transactions in the log and in positions are from. Another cluster than the one the row stands in:
-- it was restored there by pg_dump, and is adopted before it is used. Its name is one that pg_restore comes to after
-- the log's.
CREATE TABLE onceward.outbox_cluster (
    system_identifier bigint NOT NULL,
    -- The transaction that wrote this row. In a cluster that pg_upgrade has made from another, it still is.
    xid               xid8   NOT NULL DEFAULT pg_current_xact_id(),
    CONSTRAINT outbox_cluster_pkey PRIMARY KEY (system_identifier)
);
COMMENT ON TABLE onceward.outbox_cluster IS 'The cluster whose transaction numbers stand in the log and in positions';
INSERT INTO onceward.outbox_cluster (system_identifier) SELECT system_identifier FROM pg_control_system();

-- What all instances of a relay have in common.
CREATE TABLE onceward.relay (
    name       text        COLLATE "C" NOT NULL,
    lanes      integer     NOT NULL,
    -- Patterns, * stands for anything. Empty: all topics.
    topics     text[]      NOT NULL,
    -- block_lane, park_key
    policy     text        NOT NULL,
    -- How long events stay at least, published or not, from when they were written. The longest of all relays' counts.
    retention  interval    NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When the relay was last known to be in use, to the minute: an instance had a lease, or was about to (Register), or the
    -- log was adopted. A time in which no relay ran is added to it, so that it does not count.
    seen_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT relay_pkey PRIMARY KEY (name)
);
COMMENT ON TABLE onceward.relay IS 'Relays, with what all instances of each have in common';

-- Leases, a row for each process that runs a relay. UNLOGGED, since it must not outlive a crash or a failover: both may
-- lose the last commits and give the numbers of their transactions to others, so that what an instance still knows from
-- before is wrong. Without its row it begins again with what is saved.
CREATE UNLOGGED TABLE onceward.relay_instance (
    relay       text        COLLATE "C" NOT NULL,
    instance    text        COLLATE "C" NOT NULL,
    seen_at     timestamptz NOT NULL,
    lease_until timestamptz NOT NULL,
    CONSTRAINT relay_instance_pkey PRIMARY KEY (relay, instance)
) WITH (fillfactor = 50);
COMMENT ON TABLE onceward.relay_instance IS 'Processes that run a relay, each with its lease';

-- Positions. The only rows that publishing updates: with room in their pages for new versions, no index changes.
CREATE TABLE onceward.relay_lane (
    relay        text        COLLATE "C" NOT NULL,
    lane         integer     NOT NULL,
    -- Rises when the lane changes hands or an operator changes something. Every write of a position names it.
    epoch        bigint      NOT NULL DEFAULT 0,
    -- An instance. NULL, or one whose lease is over: the lane is free.
    owner        text        COLLATE "C",
    -- All that is visible in this snapshot was handled. '1:1:': nothing was.
    seen         pg_snapshot NOT NULL DEFAULT '1:1:',
    -- Transactions younger than that have larger numbers only: where the scan begins.
    floor        bigint      NOT NULL DEFAULT 0,
    -- The window that is being read, up to this snapshot. It was handled up to the number last.
    target       pg_snapshot,
    target_floor bigint      NOT NULL DEFAULT 0,
    last         bigint      NOT NULL DEFAULT 0,
    -- From this number on everything is handled again. 0: nothing is.
    replay       bigint      NOT NULL DEFAULT 0,
    -- The transaction that wrote the row last, see outbox_cluster.
    xid          xid8        NOT NULL DEFAULT pg_current_xact_id(),
    CONSTRAINT relay_lane_pkey PRIMARY KEY (relay, lane)
) WITH (fillfactor = 20);
COMMENT ON TABLE onceward.relay_lane IS 'How far each lane of a relay was published, and who owns it';

-- Events that a relay has set aside: the position passes them.
CREATE TABLE onceward.aside (
    relay        text        COLLATE "C" NOT NULL,
    number       bigint      NOT NULL,
    lane         integer     NOT NULL,
    -- delayed, retrying, behind, dead, skipped
    state        text        COLLATE "C" NOT NULL,
    -- Of topic and key. NULL: the event has no key.
    key_hash     text        COLLATE "C",
    -- When it is tried.
    due_at       timestamptz,
    attempts     integer     NOT NULL,
    error        text        NOT NULL,
    set_aside_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT aside_pkey PRIMARY KEY (relay, number),
    CONSTRAINT aside_due_at_check CHECK ((due_at IS NOT NULL) = (state = 'delayed' OR state = 'retrying'))
);
COMMENT ON TABLE onceward.aside IS 'Events that a relay has set aside: delayed, retrying, behind, dead or skipped';

-- Due: what is to be tried now?
CREATE INDEX aside_due ON onceward.aside (relay, lane, due_at) WHERE due_at IS NOT NULL;

-- Held, Due: whom does it hold up, and who is next?
CREATE INDEX aside_key ON onceward.aside (relay, lane, key_hash, number) WHERE state <> 'delayed';

-- PruneLog: has any relay set it aside?
CREATE INDEX aside_number ON onceward.aside (number);

-- Last, so that Check and Migrate know that all of the above is there.
INSERT INTO onceward.migration (version, name) VALUES (1, 'inbox'), (2, 'outbox');
