-- What operators tell the emitters of the change feed, and what those say of
-- themselves.

-- +goose Up

-- A row: the feed of that shard is paused. Every emitter of the shard obeys.
CREATE TABLE feed_pause (
    shard  integer PRIMARY KEY CHECK (shard >= 0),
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    who    text NOT NULL CHECK (who <> ''),
    reason text NOT NULL DEFAULT ''
);

-- What each emitter said of itself last. Rows change every few seconds.
CREATE TABLE feed_emitter (
    shard         integer NOT NULL CHECK (shard >= 0),
    instance      text NOT NULL,
    state         text NOT NULL,
    since         timestamptz NOT NULL, -- of the state
    pid           integer NOT NULL,     -- of its walsender; 0: it does not stream
    restarts      bigint NOT NULL,
    last_error    text NOT NULL,
    last_error_at timestamptz,
    published_at  timestamptz, -- what committed before is in Kafka; null: not known
    seen_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (shard, instance)
) WITH (fillfactor = 50);

-- +goose Down
DROP TABLE feed_emitter, feed_pause;
