-- Who may see which relations, as versioned events said it last (package
-- privacy). Rows are never removed: an account that closed or a video that was
-- removed stays, so that no late lower version brings it back.

-- +goose Up

CREATE TABLE privacy_account (
    account_id     text COLLATE "C" PRIMARY KEY,
    version        bigint NOT NULL CHECK (version > 0),
    status         text NOT NULL CHECK (status IN ('ACTIVE', 'CLOSED', 'BANNED')),
    private        boolean NOT NULL,
    show_likes     boolean NOT NULL,
    show_favorites boolean NOT NULL,
    show_following boolean NOT NULL,
    show_followers boolean NOT NULL
);

CREATE TABLE privacy_video (
    video_id   text COLLATE "C" PRIMARY KEY,
    version    bigint NOT NULL CHECK (version > 0),
    author_id  text COLLATE "C" NOT NULL,
    status     text NOT NULL CHECK (status IN ('PUBLIC', 'PRIVATE', 'REMOVED')),
    likers     text NOT NULL CHECK (likers IN ('EVERYONE', 'AUTHOR', 'NOBODY')),
    favoriters text NOT NULL CHECK (favoriters IN ('EVERYONE', 'AUTHOR', 'NOBODY'))
);

CREATE TABLE privacy_block (
    blocker_id text COLLATE "C" NOT NULL,
    blocked_id text COLLATE "C" NOT NULL,
    version    bigint NOT NULL CHECK (version > 0),
    active     boolean NOT NULL, -- false: lifted
    PRIMARY KEY (blocker_id, blocked_id)
);

-- +goose Down
DROP TABLE privacy_block, privacy_video, privacy_account;
