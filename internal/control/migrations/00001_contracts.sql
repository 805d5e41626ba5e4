-- Contracts, manifests and the pointers to the active ones. What users, counts
-- and recovery hang on is immutable here, not by convention (I15, D1).

-- +goose Up

-- Contracts of both tables: a hash algorithm, its seed, the key encoding and
-- the modulus, with probes: ids and the slot that they had when the contract
-- was stored, for newer code to check itself.
CREATE TABLE shard_map (
    id         integer PRIMARY KEY CHECK (id > 0),
    algorithm  text NOT NULL,
    seed       text NOT NULL CHECK (seed ~ '^[0-9a-f]{16}$'),
    encoding   text NOT NULL,
    modulus    integer NOT NULL CHECK (modulus > 0),
    probes     jsonb NOT NULL,
    shards     integer NOT NULL CHECK (shards > 0),
    slots      integer[] NOT NULL CHECK (cardinality(slots) = modulus),
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE bucket_space (
    id         integer PRIMARY KEY CHECK (id > 0),
    algorithm  text NOT NULL,
    seed       text NOT NULL CHECK (seed ~ '^[0-9a-f]{16}$'),
    encoding   text NOT NULL,
    modulus    integer NOT NULL CHECK (modulus > 0),
    probes     jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE generation (
    id                 bigint PRIMARY KEY CHECK (id > 0),
    bucket_space       integer NOT NULL REFERENCES bucket_space,
    active_manifest_id bigint,
    revision           bigint NOT NULL DEFAULT 1, -- +1 by every CAS
    created_at         timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE route_manifest (
    id           bigint PRIMARY KEY CHECK (id > 0),
    generation   bigint NOT NULL REFERENCES generation,
    bucket_space integer NOT NULL REFERENCES bucket_space,
    status       text NOT NULL DEFAULT 'BUILDING' CHECK (status IN ('BUILDING', 'SEALED')),
    row_count    integer,
    checksum     text CHECK (checksum ~ '^[0-9a-f]{16}$'),
    created_at   timestamptz NOT NULL DEFAULT now(),
    sealed_at    timestamptz,
    CHECK (status = 'BUILDING' OR (row_count IS NOT NULL AND checksum IS NOT NULL AND sealed_at IS NOT NULL))
);

ALTER TABLE generation ADD FOREIGN KEY (active_manifest_id) REFERENCES route_manifest;

CREATE TABLE route_manifest_item (
    manifest_id bigint NOT NULL REFERENCES route_manifest,
    bucket      integer NOT NULL CHECK (bucket >= 0),
    partition   integer NOT NULL CHECK (partition >= 0),
    epoch       bigint NOT NULL CHECK (epoch > 0),
    PRIMARY KEY (manifest_id, bucket)
);

-- One row: what is active now.
CREATE TABLE activation (
    singleton  boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    shard_map  integer NOT NULL REFERENCES shard_map,
    generation bigint NOT NULL REFERENCES generation,
    revision   bigint NOT NULL DEFAULT 1 -- +1 by every CAS
);

-- +goose StatementBegin
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is immutable: store a new one and activate it', TG_TABLE_NAME
        USING ERRCODE = 'object_not_in_prerequisite_state';
END $$;
-- +goose StatementEnd

CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON shard_map FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON bucket_space FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON route_manifest FOR EACH ROW WHEN (OLD.status = 'SEALED') EXECUTE FUNCTION refuse_change();

-- +goose StatementBegin
CREATE FUNCTION refuse_sealed_item() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    manifest bigint := CASE WHEN TG_OP = 'INSERT' THEN NEW.manifest_id ELSE OLD.manifest_id END;
BEGIN
    -- The lock makes an item and the seal of its manifest wait for each other.
    PERFORM FROM route_manifest WHERE id = manifest AND status = 'BUILDING' FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'route manifest % is sealed: store a new one and activate it', manifest
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.manifest_id <> OLD.manifest_id THEN
        RAISE EXCEPTION 'a route cannot move from manifest % to %', OLD.manifest_id, NEW.manifest_id
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;
-- +goose StatementEnd

CREATE TRIGGER sealed BEFORE INSERT OR UPDATE OR DELETE ON route_manifest_item FOR EACH ROW EXECUTE FUNCTION refuse_sealed_item();

-- +goose StatementBegin
CREATE FUNCTION refuse_unsealed_manifest() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM route_manifest
        WHERE id = NEW.active_manifest_id AND generation = NEW.id
          AND bucket_space = NEW.bucket_space AND status = 'SEALED';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'generation % cannot use route manifest %: it is not sealed, or belongs to another generation or bucket space', NEW.id, NEW.active_manifest_id
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd

CREATE TRIGGER sealed_only BEFORE INSERT OR UPDATE ON generation FOR EACH ROW WHEN (NEW.active_manifest_id IS NOT NULL) EXECUTE FUNCTION refuse_unsealed_manifest();

-- +goose Down
DROP TABLE activation, route_manifest_item, route_manifest, generation, bucket_space, shard_map CASCADE;
DROP FUNCTION refuse_change, refuse_sealed_item, refuse_unsealed_manifest;
