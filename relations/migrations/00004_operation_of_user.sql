-- An operation id belongs to its user: two users may have the same one, and do
-- not learn of each other, whichever shards they are on.

-- +goose Up
ALTER TABLE command DROP CONSTRAINT command_pkey;
ALTER TABLE command ADD PRIMARY KEY (operation_id, user_id, created_at);

-- +goose Down
ALTER TABLE command DROP CONSTRAINT command_pkey;
ALTER TABLE command ADD PRIMARY KEY (operation_id, created_at);
