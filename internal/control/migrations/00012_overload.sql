-- How far processes have gone under overload, and what an operator wants.

-- +goose Up

CREATE TABLE overload_report (
    instance text PRIMARY KEY,
    level    smallint NOT NULL,
    why      text NOT NULL,
    seen_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE overload_order (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    level    smallint NOT NULL,
    who      text NOT NULL,
    reason   text NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- +goose Down
DROP TABLE overload_order;
DROP TABLE overload_report;
