-- Counts in Redis are all counted by one manifest of routes: a generation names
-- it, and another manifest needs another generation (E4).

-- +goose Up
ALTER TABLE cache_generation ADD COLUMN manifest bigint NOT NULL DEFAULT 0;
ALTER TABLE cache_generation ADD CHECK ((family = 'counts') = (manifest > 0));

-- +goose Down
DELETE FROM cache_generation WHERE family = 'counts';
ALTER TABLE cache_generation DROP COLUMN manifest;
