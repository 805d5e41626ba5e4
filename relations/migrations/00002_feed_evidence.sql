-- What the checks of the change feed rest on.

-- +goose Up

-- A seal's place in the log: what committed before it ends below lsn. And the
-- barrier that it is, if it is one.
ALTER TABLE seal ADD COLUMN lsn pg_lsn, ADD COLUMN barrier_id text;

-- Rows that someone deleted from the outbox. Nothing of tidemark's does so:
-- retention drops whole partitions. Without this trail the id of such a row
-- could not be told from one of an aborted transaction.
CREATE TABLE outbox_deleted (
    id            bigint NOT NULL,
    aggregatetype text NOT NULL,
    aggregateid   text NOT NULL,
    created_at    timestamptz NOT NULL,
    deleted_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_by    text NOT NULL DEFAULT session_user,
    named         boolean NOT NULL DEFAULT false, -- a gap has it
    PRIMARY KEY (id, created_at)
);
CREATE INDEX outbox_deleted_unnamed ON outbox_deleted (id) WHERE NOT named;

-- +goose StatementBegin
CREATE FUNCTION trace_deleted_outbox() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox_deleted (id, aggregatetype, aggregateid, created_at)
    VALUES (OLD.id, OLD.aggregatetype, OLD.aggregateid, OLD.created_at)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER trace_deleted AFTER DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION trace_deleted_outbox();

-- +goose Down
DROP TRIGGER trace_deleted ON outbox;
DROP FUNCTION trace_deleted_outbox;
DROP TABLE outbox_deleted;
ALTER TABLE seal DROP COLUMN lsn, DROP COLUMN barrier_id;
