-- One relation shard.

-- +goose Up

-- Which shard this database is; checked by every connection that writes.
CREATE TABLE shard (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    number    integer NOT NULL CHECK (number >= 0)
);

-- Facts. Kinds and states have the numbers of the protobuf enums. Ended
-- relations stay, so that a late lower version can be told from a new one.
CREATE TABLE relation (
    user_id           text COLLATE "C" NOT NULL,
    kind              smallint NOT NULL CHECK (kind BETWEEN 1 AND 3),
    target_id         text COLLATE "C" NOT NULL,
    state             smallint NOT NULL CHECK (state BETWEEN 1 AND 7),
    version           bigint NOT NULL CHECK (version > 0),
    state_changed_at  timestamptz NOT NULL,
    last_operation_id text COLLATE "C" NOT NULL, -- of the last transition
    created_at        timestamptz NOT NULL,
    updated_at        timestamptz NOT NULL,
    PRIMARY KEY (user_id, kind, target_id)
);
CREATE INDEX relation_list ON relation (user_id, kind, state, state_changed_at DESC, target_id DESC);

-- Decided commands. The id is unique by the writers' locks, not by this key,
-- which must hold the partition key. Weekly partitions: an id is looked up in
-- every partition.
CREATE TABLE command (
    operation_id   text COLLATE "C" NOT NULL,
    user_id        text COLLATE "C" NOT NULL,
    kind           smallint NOT NULL,
    target_id      text COLLATE "C" NOT NULL,
    desired_state  smallint NOT NULL,
    base_version   bigint,
    outcome        smallint NOT NULL CHECK (outcome BETWEEN 1 AND 3),
    result_state   smallint NOT NULL,
    result_version bigint NOT NULL,
    created_at     timestamptz NOT NULL,
    PRIMARY KEY (operation_id, created_at)
) PARTITION BY RANGE (created_at);

-- The change feed's source, insert only. Ids come from the column's default
-- inside the INSERT and are never cached: seals rest on it.
CREATE SEQUENCE outbox_id_seq AS bigint CACHE 1;
CREATE TABLE outbox (
    id            bigint NOT NULL DEFAULT nextval('outbox_id_seq'),
    aggregatetype text NOT NULL,
    aggregateid   text NOT NULL,
    type          text NOT NULL,
    payload       jsonb NOT NULL,
    source_shard  integer NOT NULL,
    created_at    timestamptz NOT NULL,
    PRIMARY KEY (id, created_at)
) PARTITION BY RANGE (created_at);
ALTER SEQUENCE outbox_id_seq OWNED BY outbox.id;

CREATE PUBLICATION tidemark_outbox FOR TABLE outbox
    WITH (publish = 'insert', publish_via_partition_root = true);

-- Seals, dense by number; the outbox row is what travels.
CREATE TABLE seal (
    number    bigint PRIMARY KEY CHECK (number > 0),
    outbox_id bigint NOT NULL UNIQUE, -- of the seal row
    from_id   bigint NOT NULL,        -- first outbox id of the interval
    sealed_at timestamptz NOT NULL,
    proven    boolean NOT NULL DEFAULT false
);
CREATE INDEX seal_unproven ON seal (number) WHERE NOT proven;

-- +goose StatementBegin
CREATE FUNCTION expect_rows(actual bigint, expected bigint, what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF actual <> expected THEN
        RAISE EXCEPTION '% of % relations could be %: another writer changed them', actual, expected, what
            USING ERRCODE = 'serialization_failure';
    END IF;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION expect_rows;
DROP PUBLICATION tidemark_outbox;
DROP TABLE seal, outbox, command, relation, shard;
