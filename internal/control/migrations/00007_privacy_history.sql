-- Which accounts the privacy rules hid from lists, and when: what an export
-- that is read for a while, or taken up again later, may show is judged by the
-- rules of one moment (package privacy).

-- +goose Up

-- revision orders the changes: whoever holds a lock that keeps writers of this
-- table out knows that every lower one is settled, since the number is taken
-- inside the INSERT. Of one account they rise with its version.
CREATE TABLE privacy_account_hidden (
    account_id text COLLATE "C" NOT NULL,
    revision   bigint GENERATED ALWAYS AS IDENTITY,
    hidden     boolean NOT NULL, -- from then on
    PRIMARY KEY (account_id, revision)
);

INSERT INTO privacy_account_hidden (account_id, hidden)
SELECT account_id, true FROM privacy_account WHERE status <> 'ACTIVE' OR private;

-- +goose StatementBegin
CREATE FUNCTION privacy_note_hidden() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO privacy_account_hidden (account_id, hidden) VALUES (NEW.account_id, NEW.status <> 'ACTIVE' OR NEW.private);
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- An account that nobody spoke of is not hidden.
CREATE TRIGGER privacy_account_inserted AFTER INSERT ON privacy_account FOR EACH ROW
    WHEN (NEW.status <> 'ACTIVE' OR NEW.private)
    EXECUTE FUNCTION privacy_note_hidden();

CREATE TRIGGER privacy_account_updated AFTER UPDATE ON privacy_account FOR EACH ROW
    WHEN ((OLD.status <> 'ACTIVE' OR OLD.private) IS DISTINCT FROM (NEW.status <> 'ACTIVE' OR NEW.private))
    EXECUTE FUNCTION privacy_note_hidden();

-- +goose Down
DROP TRIGGER privacy_account_updated ON privacy_account;
DROP TRIGGER privacy_account_inserted ON privacy_account;
DROP FUNCTION privacy_note_hidden;
DROP TABLE privacy_account_hidden;
