-- Relations that the count users see leaves out (topology.Hiding), and what
-- hides or shows a relation that exists. Who hides has the numbers of the
-- protobuf enum.

-- +goose Up
ALTER TABLE relation
    ADD COLUMN hidden smallint NOT NULL DEFAULT 0,
    ADD COLUMN hidden_reason text;

-- Not validated: every row that exists is shown, and looking at them all would
-- keep writers out.
ALTER TABLE relation
    ADD CONSTRAINT relation_hidden CHECK (
        hidden BETWEEN 0 AND 2
        AND (hidden = 0) = (hidden_reason IS NULL)
        AND (hidden = 0 OR state IN (2, 5, 7))) NOT VALID;

-- Decided hidings, kept: they are the evidence of who was left out of a count.
-- One operation may be of many relations, such as all those of a case.
CREATE TABLE hiding (
    operation_id   text COLLATE "C" NOT NULL,
    user_id        text COLLATE "C" NOT NULL,
    kind           smallint NOT NULL,
    target_id      text COLLATE "C" NOT NULL,
    hidden         smallint NOT NULL CHECK (hidden BETWEEN 0 AND 2),
    hidden_reason  text,
    outcome        smallint NOT NULL CHECK (outcome BETWEEN 1 AND 3),
    result_state   smallint NOT NULL,
    result_version bigint NOT NULL,
    created_at     timestamptz NOT NULL,
    PRIMARY KEY (user_id, kind, target_id, operation_id)
);

-- +goose Down
DROP TABLE hiding;
ALTER TABLE relation DROP COLUMN hidden, DROP COLUMN hidden_reason;
