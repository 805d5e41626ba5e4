-- Lives of what Redis holds (E3). A generation is REBUILDING until it is whole
-- and verified, then ACTIVE until another takes its place (RETIRED) or it is
-- lost (FAILED). Redis may be flushed; this is not.

-- +goose Up

-- One row: what tells this deployment's entries from others' in a shared Redis.
CREATE TABLE cache_deployment (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    name      text NOT NULL DEFAULT substr(md5(random()::text || clock_timestamp()::text), 1, 12)
);
INSERT INTO cache_deployment DEFAULT VALUES;

CREATE TABLE cache_generation (
    family       text NOT NULL CHECK (family IN ('relations', 'counts', 'heads')),
    id           bigint NOT NULL CHECK (id > 0), -- per family, from 1
    buckets      integer NOT NULL CHECK (buckets > 0),
    status       text NOT NULL DEFAULT 'REBUILDING' CHECK (status IN ('REBUILDING', 'ACTIVE', 'RETIRED', 'FAILED')),
    reason       text NOT NULL,           -- why it was begun
    ended_reason text NOT NULL DEFAULT '',
    stamped      boolean NOT NULL DEFAULT false, -- Redis was told of it; never twice
    dropped      boolean NOT NULL DEFAULT false, -- nothing of it is left in Redis
    progress     jsonb NOT NULL DEFAULT '{}',
    begun_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    activated_at timestamptz,
    ended_at     timestamptz,
    PRIMARY KEY (family, id)
);
CREATE UNIQUE INDEX cache_generation_one ON cache_generation (family, status) WHERE status IN ('REBUILDING', 'ACTIVE');

-- +goose Down
DROP TABLE cache_generation, cache_deployment;
