-- The outbox: the log of events, relays and their positions.
-- What each column and index is for stands in schema.sql; {schema} is the quoted name of the schema.

CREATE SEQUENCE {schema}.outbox_number AS bigint CACHE 1 NO CYCLE;

CREATE TABLE {schema}.outbox (
    number        bigint      NOT NULL DEFAULT CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('{schema}.outbox_number') END,
    xid           xid8        NOT NULL DEFAULT pg_current_xact_id(),
    slot          smallint    NOT NULL GENERATED ALWAYS AS (
        (CASE WHEN key IS NULL THEN number ELSE hashtext(encode(key, 'hex') COLLATE "C") END OPERATOR(pg_catalog.&) 1023)::smallint) STORED,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    deliver_after timestamptz,
    message_id    text        COLLATE "C" NOT NULL DEFAULT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        PLACING substring(int8send(floor(date_part('epoch', clock_timestamp()) OPERATOR(pg_catalog.*) 1000)::bigint) FROM 3) FROM 1), 52, 1), 53, 1), 'hex')::uuid::text,
    topic         text        COLLATE "C" NOT NULL,
    key           bytea,
    payload       bytea,
    headers       json,
    CONSTRAINT outbox_pkey PRIMARY KEY (number),
    CONSTRAINT outbox_topic_check CHECK (topic <> ''),
    CONSTRAINT outbox_created_at_check CHECK (isfinite(created_at) AND created_at < '10000-01-01 00:00:00+00'),
    CONSTRAINT outbox_deliver_after_check CHECK (isfinite(deliver_after) AND deliver_after < '10000-01-01 00:00:00+00')
);
COMMENT ON TABLE {schema}.outbox IS 'Events, written once in the transaction they belong to; publishing changes nothing here';
CREATE INDEX outbox_xid ON {schema}.outbox (xid, number);

CREATE TABLE {schema}.outbox_cluster (
    system_identifier bigint NOT NULL,
    xid               xid8   NOT NULL DEFAULT pg_current_xact_id(),
    CONSTRAINT outbox_cluster_pkey PRIMARY KEY (system_identifier)
);
COMMENT ON TABLE {schema}.outbox_cluster IS 'The cluster whose transaction numbers stand in the log and in positions';
INSERT INTO {schema}.outbox_cluster (system_identifier) SELECT system_identifier FROM pg_control_system();

CREATE TABLE {schema}.relay (
    name       text        COLLATE "C" NOT NULL,
    lanes      integer     NOT NULL,
    topics     text[]      NOT NULL,
    policy     text        NOT NULL,
    retention  interval    NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT relay_pkey PRIMARY KEY (name)
);
COMMENT ON TABLE {schema}.relay IS 'Relays, with what all instances of each have in common';

CREATE UNLOGGED TABLE {schema}.relay_instance (
    relay       text        COLLATE "C" NOT NULL,
    instance    text        COLLATE "C" NOT NULL,
    seen_at     timestamptz NOT NULL,
    lease_until timestamptz NOT NULL,
    CONSTRAINT relay_instance_pkey PRIMARY KEY (relay, instance)
) WITH (fillfactor = 50);
COMMENT ON TABLE {schema}.relay_instance IS 'Processes that run a relay, each with its lease';

CREATE TABLE {schema}.relay_lane (
    relay        text        COLLATE "C" NOT NULL,
    lane         integer     NOT NULL,
    epoch        bigint      NOT NULL DEFAULT 0,
    owner        text        COLLATE "C",
    seen         pg_snapshot NOT NULL DEFAULT '1:1:',
    floor        bigint      NOT NULL DEFAULT 0,
    target       pg_snapshot,
    target_floor bigint      NOT NULL DEFAULT 0,
    last         bigint      NOT NULL DEFAULT 0,
    replay       bigint      NOT NULL DEFAULT 0,
    xid          xid8        NOT NULL DEFAULT pg_current_xact_id(),
    CONSTRAINT relay_lane_pkey PRIMARY KEY (relay, lane)
) WITH (fillfactor = 20);
COMMENT ON TABLE {schema}.relay_lane IS 'How far each lane of a relay was published, and who owns it';

CREATE TABLE {schema}.aside (
    relay        text        COLLATE "C" NOT NULL,
    number       bigint      NOT NULL,
    lane         integer     NOT NULL,
    state        text        COLLATE "C" NOT NULL,
    key_hash     text        COLLATE "C",
    due_at       timestamptz,
    attempts     integer     NOT NULL,
    error        text        NOT NULL,
    set_aside_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT aside_pkey PRIMARY KEY (relay, number),
    CONSTRAINT aside_due_at_check CHECK ((due_at IS NOT NULL) = (state = 'delayed' OR state = 'retrying'))
);
COMMENT ON TABLE {schema}.aside IS 'Events that a relay has set aside: delayed, retrying, behind, dead or skipped';
CREATE INDEX aside_due ON {schema}.aside (relay, lane, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX aside_key ON {schema}.aside (relay, lane, key_hash, number) WHERE state <> 'delayed';
CREATE INDEX aside_number ON {schema}.aside (number);
