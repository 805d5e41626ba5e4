-- Exports that were asked for over the API.

-- +goose Up

CREATE TABLE export_job (
    id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    who          text NOT NULL,
    operation_id text NOT NULL,
    kind         text NOT NULL,
    target_id    text NOT NULL,
    format       text NOT NULL,
    accounts     text NOT NULL,
    purpose      text NOT NULL CHECK (purpose <> ''),
    state        text NOT NULL DEFAULT 'QUEUED' CHECK (state IN ('QUEUED', 'RUNNING', 'FINISHED', 'FAILED')),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at     timestamptz,
    relations    bigint NOT NULL DEFAULT 0, -- so far
    rows         bigint NOT NULL DEFAULT 0,
    note         text NOT NULL DEFAULT '', -- what it does, or why it failed
    manifest     jsonb, -- when it is finished
    attempts     integer NOT NULL DEFAULT 0,
    -- Who runs it, until when it is theirs without a word from them.
    runner       text NOT NULL DEFAULT '',
    lease_until  timestamptz NOT NULL DEFAULT '-infinity',
    UNIQUE (who, operation_id)
);
CREATE INDEX export_job_waiting ON export_job (created_at) WHERE state IN ('QUEUED', 'RUNNING');

-- +goose Down
DROP TABLE export_job;
