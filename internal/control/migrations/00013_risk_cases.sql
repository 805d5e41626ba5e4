-- What operators hid and showed, why, and what every relation was before: what an
-- undo goes by.

-- +goose Up
CREATE TABLE risk_case (
    id       text COLLATE "C" PRIMARY KEY,
    who      text NOT NULL,
    purpose  text NOT NULL,
    hidden   smallint NOT NULL CHECK (hidden BETWEEN 0 AND 2),
    reason   text NOT NULL,
    undoes   text REFERENCES risk_case,
    begun_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz
);

-- Written before a relation is touched, so that what a case did can be undone
-- wherever it was interrupted.
CREATE TABLE risk_case_relation (
    case_id     text COLLATE "C" NOT NULL REFERENCES risk_case,
    user_id     text COLLATE "C" NOT NULL,
    kind        smallint NOT NULL,
    target_id   text COLLATE "C" NOT NULL,
    was_hidden  smallint NOT NULL CHECK (was_hidden BETWEEN 0 AND 2),
    was_reason  text NOT NULL,
    was_version bigint NOT NULL,
    outcome     smallint, -- none until it is decided
    version     bigint,
    PRIMARY KEY (case_id, user_id, kind, target_id)
);

-- +goose Down
DROP TABLE risk_case_relation;
DROP TABLE risk_case;
