-- The epoch of the shard map that this shard takes writes of.

-- +goose Up
ALTER TABLE shard ADD COLUMN map_epoch bigint NOT NULL DEFAULT 1 CHECK (map_epoch > 0);

-- +goose StatementBegin
CREATE FUNCTION refuse_lower_epoch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the map epoch of a shard cannot go from % to %: writers of the old map would come back', OLD.map_epoch, NEW.map_epoch
        USING ERRCODE = 'object_not_in_prerequisite_state';
END $$;
-- +goose StatementEnd
CREATE TRIGGER epoch_rises BEFORE UPDATE ON shard FOR EACH ROW WHEN (NEW.map_epoch < OLD.map_epoch)
    EXECUTE FUNCTION refuse_lower_epoch();

-- +goose Down
DROP TRIGGER epoch_rises ON shard;
DROP FUNCTION refuse_lower_epoch;
ALTER TABLE shard DROP COLUMN map_epoch;
