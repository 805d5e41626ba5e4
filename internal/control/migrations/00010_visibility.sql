-- What commands and counts remember of accounts, videos and blocks is dropped
-- as soon as it changes (package privacy), and videos are also for friends,
-- taken down and deleted.

-- +goose Up

ALTER TABLE privacy_video DROP CONSTRAINT privacy_video_status_check;
ALTER TABLE privacy_video ADD CONSTRAINT privacy_video_status_check
    CHECK (status IN ('PUBLIC', 'FRIENDS', 'PRIVATE', 'REMOVED', 'TAKEN_DOWN', 'DELETED'));

-- Listeners learn of a change in the order of commits, after its own.
-- +goose StatementBegin
CREATE FUNCTION privacy_note_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('tidemark_privacy', CASE TG_TABLE_NAME
        WHEN 'privacy_account' THEN json_build_array('account', to_jsonb(NEW)->>'account_id')
        WHEN 'privacy_video' THEN json_build_array('video', to_jsonb(NEW)->>'video_id')
        ELSE json_build_array('block', to_jsonb(NEW)->>'blocker_id', to_jsonb(NEW)->>'blocked_id')
    END::text);
    RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER privacy_account_changed AFTER INSERT OR UPDATE ON privacy_account FOR EACH ROW EXECUTE FUNCTION privacy_note_change();
CREATE TRIGGER privacy_video_changed AFTER INSERT OR UPDATE ON privacy_video FOR EACH ROW EXECUTE FUNCTION privacy_note_change();
CREATE TRIGGER privacy_block_changed AFTER INSERT OR UPDATE ON privacy_block FOR EACH ROW EXECUTE FUNCTION privacy_note_change();

-- +goose Down
DROP TRIGGER privacy_block_changed ON privacy_block;
DROP TRIGGER privacy_video_changed ON privacy_video;
DROP TRIGGER privacy_account_changed ON privacy_account;
DROP FUNCTION privacy_note_change;

-- An older version knows only that such a video is for nobody but its author, or
-- for nobody.
UPDATE privacy_video SET status = 'PRIVATE' WHERE status = 'FRIENDS';
UPDATE privacy_video SET status = 'REMOVED' WHERE status IN ('TAKEN_DOWN', 'DELETED');
ALTER TABLE privacy_video DROP CONSTRAINT privacy_video_status_check;
ALTER TABLE privacy_video ADD CONSTRAINT privacy_video_status_check CHECK (status IN ('PUBLIC', 'PRIVATE', 'REMOVED'));
