-- Facts that were counted and that their shard has lost since.

-- +goose Up

-- The gaps whose ids these are say how far the healing is. A number of an
-- outbox row may come a second time after such a loss; an event id does not.
CREATE TABLE lost_fact (
    shard     integer NOT NULL CHECK (shard >= 0),
    event_id  text NOT NULL,
    outbox_id bigint NOT NULL,
    relation  text NOT NULL, -- key
    version   bigint NOT NULL CHECK (version > 0),
    found_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (shard, event_id)
);
CREATE INDEX lost_fact_outbox_id ON lost_fact (shard, outbox_id);

-- +goose Down
DROP TABLE lost_fact;
