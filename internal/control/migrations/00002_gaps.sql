-- What the change feed is checked with, and who did what.

-- +goose Up

-- Every action of an operator or of tidemark itself that changes what others
-- rely on.
CREATE TABLE audit (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    who     text NOT NULL CHECK (who <> ''),
    action  text NOT NULL CHECK (action <> ''), -- such as gap.healed
    subject text NOT NULL,
    reason  text NOT NULL DEFAULT '',
    detail  jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX audit_subject ON audit (subject, id);
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION refuse_change();

-- A named gap: rows of a shard's outbox that the change feed did not bring.
CREATE TABLE gap (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    shard      integer NOT NULL CHECK (shard >= 0),
    seal       bigint NOT NULL CHECK (seal > 0),
    missing    int8multirange NOT NULL, -- outbox ids
    rows       bigint NOT NULL CHECK (rows >= 0),
    -- False when missing may hold ids of other rows too.
    exact      boolean NOT NULL DEFAULT true,
    cause      text NOT NULL,
    note       text NOT NULL DEFAULT '',
    state      text NOT NULL DEFAULT 'OPEN' CHECK (state IN ('OPEN', 'HEALING', 'HEALED')),
    revision   bigint NOT NULL DEFAULT 1, -- +1 by every change
    first_seen timestamptz NOT NULL,
    -- Offsets in the change feed of the records that heal it.
    sent_first bigint,
    sent_last  bigint,
    healed_at  timestamptz,
    healed_by  text,
    UNIQUE (shard, seal),
    CHECK (state = 'OPEN' OR sent_last IS NOT NULL OR healed_at IS NOT NULL)
);
CREATE INDEX gap_unhealed ON gap (shard, seal) WHERE state <> 'HEALED';

-- How far each shard's feed is verified, and what it looked like then.
CREATE TABLE source (
    shard         integer PRIMARY KEY CHECK (shard >= 0),
    verified_seal bigint NOT NULL DEFAULT 0,
    settled_id    bigint NOT NULL DEFAULT 0, -- outbox id of that seal's row
    cdc_offset    bigint NOT NULL DEFAULT -1,
    verified_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    feed          jsonb -- as it was when last looked at
);

-- What someone did to a shard's slot or publication.
CREATE TABLE feed_event (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    shard  integer NOT NULL CHECK (shard >= 0),
    at     timestamptz NOT NULL DEFAULT clock_timestamp(), -- of noticing
    cause  text NOT NULL,
    detail text NOT NULL
);
CREATE INDEX feed_event_shard ON feed_event (shard, id);

-- What became of records in quarantine. The record itself is in its stream.
CREATE TABLE quarantine_decision (
    topic      text NOT NULL, -- origin
    partition  integer NOT NULL,
    "offset"   bigint NOT NULL,
    first_seen timestamptz NOT NULL, -- a topic made anew has old offsets again
    decision   text NOT NULL CHECK (decision IN ('REPLAYED', 'DISCARDED')),
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    who        text NOT NULL,
    reason     text NOT NULL CHECK (reason <> ''),
    times      integer NOT NULL DEFAULT 1,
    PRIMARY KEY (topic, partition, "offset", first_seen)
);

-- +goose Down
DROP TABLE quarantine_decision, feed_event, source, gap, audit;
