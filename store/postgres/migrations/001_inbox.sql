-- The inbox: records, attempts, dead letters and parked keys.
-- What each column and index is for stands in schema.sql; {schema} is the quoted name of the schema.

CREATE TABLE {schema}.record (
    scope       text        COLLATE "C" NOT NULL,
    key         text        COLLATE "C" NOT NULL,
    fingerprint bytea,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at  timestamptz NOT NULL,
    CONSTRAINT record_pkey PRIMARY KEY (scope, key)
);
COMMENT ON TABLE {schema}.record IS 'One row for each message or request whose effects are committed';
CREATE INDEX record_expires_at ON {schema}.record (expires_at);

CREATE TABLE {schema}.attempt (
    scope      text        COLLATE "C" NOT NULL,
    key        text        COLLATE "C" NOT NULL,
    attempts   integer     NOT NULL,
    error      text        NOT NULL,
    first_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    CONSTRAINT attempt_pkey PRIMARY KEY (scope, key)
);
COMMENT ON TABLE {schema}.attempt IS 'Failed attempts at a message or request, and the last error';
CREATE INDEX attempt_expires_at ON {schema}.attempt (expires_at);

CREATE TABLE {schema}.dead_letter (
    number       bigint      GENERATED ALWAYS AS IDENTITY,
    consumer     text        COLLATE "C" NOT NULL,
    topic        text        COLLATE "C" NOT NULL,
    source       text        COLLATE "C" NOT NULL,
    message_id   text        COLLATE "C" NOT NULL,
    reason       text        NOT NULL,
    error        text        NOT NULL,
    attempts     integer     NOT NULL,
    message_key  text        COLLATE "C",
    payload      bytea,
    headers      json,
    position     text        NOT NULL,
    message_time timestamptz,
    parks_key    boolean     NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    raw          json,
    CONSTRAINT dead_letter_pkey PRIMARY KEY (number)
);
COMMENT ON TABLE {schema}.dead_letter IS 'Messages set aside until a person redrives or discards them';
CREATE INDEX dead_letter_consumer ON {schema}.dead_letter (consumer, number);
CREATE INDEX dead_letter_message ON {schema}.dead_letter (consumer, message_id);
CREATE INDEX dead_letter_parked ON {schema}.dead_letter (consumer, topic, message_key, number) WHERE parks_key;

CREATE TABLE {schema}.parked_key (
    consumer    text        COLLATE "C" NOT NULL,
    topic       text        COLLATE "C" NOT NULL,
    message_key text        COLLATE "C" NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT parked_key_pkey PRIMARY KEY (consumer, topic, message_key)
);
COMMENT ON TABLE {schema}.parked_key IS 'Keys whose messages wait behind a dead letter';
