-- Where the reverse index keeps relations: frozen contracts, as in 00001.

-- +goose Up

-- users: user to reverse shard, its modulus is R. targets: kind and target to
-- the first of spread partitions, its modulus is the number of partitions.
CREATE TABLE reverse_generation (
    id                integer PRIMARY KEY CHECK (id > 0),
    spread            integer NOT NULL CHECK (spread > 0),
    users_algorithm   text NOT NULL,
    users_seed        text NOT NULL CHECK (users_seed ~ '^[0-9a-f]{16}$'),
    users_encoding    text NOT NULL,
    users_modulus     integer NOT NULL CHECK (users_modulus > 0),
    users_probes      jsonb NOT NULL,
    targets_algorithm text NOT NULL,
    targets_seed      text NOT NULL CHECK (targets_seed ~ '^[0-9a-f]{16}$'),
    targets_encoding  text NOT NULL,
    targets_modulus   integer NOT NULL CHECK (targets_modulus > 0),
    targets_probes    jsonb NOT NULL,
    created_at        timestamptz NOT NULL DEFAULT now()
);
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON reverse_generation FOR EACH ROW EXECUTE FUNCTION refuse_change();

-- One row: the reverse generation that is read.
CREATE TABLE reverse_activation (
    singleton          boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    reverse_generation integer NOT NULL REFERENCES reverse_generation,
    revision           bigint NOT NULL DEFAULT 1 -- +1 by every CAS
);

-- +goose Down
DROP TABLE reverse_activation, reverse_generation;
