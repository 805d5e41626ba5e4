package privacy

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/topology"
)

// List is one of a user's lists.
type List uint8

// The lists of a user.
const (
	Likes List = iota
	Favorites
	Following
	Followers
)

// notBlockedWith is the SQL that neither the viewer, $1, nor other blocks the
// other. As a function of the database it would be called for each user of a
// page, at three times the cost.
func notBlockedWith(other string) string {
	return `NOT EXISTS (
		SELECT FROM privacy_block
		WHERE active AND (blocker_id = $1 AND blocked_id = ` + other + ` OR blocker_id = ` + other + ` AND blocked_id = $1))`
}

// UserList tells whether a viewer may see one of a user's lists. One's own is
// shown always; another's only if its owner, in an active account that is not
// private, said so, and neither blocks the other. Of an account that nobody
// spoke of the answer is no, as for one that shows nothing: the two cannot be
// told apart.
func (s *Store) UserList(ctx context.Context, viewer, owner string, list List) (bool, error) {
	if viewer == owner {
		return true, nil
	}
	var open bool
	var show [4]bool // by List
	err := s.pool.QueryRow(ctx, `
		SELECT status = 'ACTIVE' AND NOT private AND `+notBlockedWith("$2")+`, show_likes, show_favorites, show_following, show_followers
		FROM privacy_account WHERE account_id = $2`, viewer, owner).
		Scan(&open, &show[Likes], &show[Favorites], &show[Following], &show[Followers])
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("asking who may see a user's list: %w", err)
	}
	return open && show[list], nil
}

// Access is how a video's list is answered.
type Access uint8

const (
	// Withheld says that there is such a video, for the viewer too, and that its
	// list is not for the viewer.
	Withheld Access = iota
	// Shown says that the list may be seen.
	Shown
	// Unknown says that for this viewer there is no such video.
	Unknown
)

// VideoList tells how a viewer may see who liked or favorited a video. A video
// that nobody spoke of is public. One that was removed, that is private to
// another, that is for friends of another's, or whose author and the viewer are
// blocked, is as one that never was.
func (s *Store) VideoList(ctx context.Context, viewer, video string, kind topology.Kind) (Access, error) {
	var author string
	var status VideoStatus
	var apart bool
	var likers, favoriters Audience
	err := s.pool.QueryRow(ctx, `
		SELECT author_id, status, NOT `+notBlockedWith("author_id")+`, likers, favoriters
		FROM privacy_video WHERE video_id = $2`, viewer, video).
		Scan(&author, &status, &apart, &likers, &favoriters)
	if errors.Is(err, pgx.ErrNoRows) {
		return Shown, nil
	}
	there := false
	if err == nil {
		there, err = s.thereFor(ctx, viewer, author, status, apart)
	}
	switch {
	case err != nil:
		return Withheld, fmt.Errorf("asking who may see a video's list: %w", err)
	case !there:
		return Unknown, nil
	}
	audience := likers
	if kind == topology.Favorite {
		audience = favoriters
	}
	if audience == Everyone || audience == Author && viewer == author {
		return Shown, nil
	}
	return Withheld, nil
}

// thereFor tells whether a video is there for a viewer; apart: the viewer and its
// author are blocked.
func (s *Store) thereFor(ctx context.Context, viewer, author string, status VideoStatus, apart bool) (bool, error) {
	switch status.audience() {
	case nobody:
		return false, nil
	case everyone:
		return !apart, nil
	}
	if viewer == author {
		return true, nil
	}
	if status.audience() == authorOnly || apart {
		return false, nil
	}
	friends, err := s.befriended(ctx, viewer, []string{author})
	return err == nil && friends[0], err
}

// Users tells which of users may stand in a list that a viewer sees: those in
// active accounts that are not private and not blocked with the viewer, and the
// viewer. An account that nobody spoke of is active and not private.
func (s *Store) Users(ctx context.Context, viewer string, users []string) ([]bool, error) {
	return s.chosen(ctx, `
		SELECT place FROM unnest($2::text[]) WITH ORDINALITY AS u (id, place)
		WHERE id = $1
		   OR NOT EXISTS (SELECT FROM privacy_account WHERE account_id = id AND (status <> 'ACTIVE' OR private))
		  AND `+notBlockedWith("id"), viewer, users)
}

// Videos tells which of videos may stand in a list that a viewer sees: those
// that are public, the viewer's own, or of a friend's for friends, and not
// removed. A video that nobody spoke of is public.
func (s *Store) Videos(ctx context.Context, viewer string, videos []string) ([]bool, error) {
	shown, err := s.chosen(ctx, `
		SELECT place FROM unnest($2::text[]) WITH ORDINALITY AS v (id, place)
		WHERE NOT EXISTS (
		    SELECT FROM privacy_video WHERE video_id = id
		    AND (status IN ('REMOVED', 'TAKEN_DOWN', 'DELETED') OR status IN ('PRIVATE', 'FRIENDS') AND author_id <> $1 OR NOT `+notBlockedWith("author_id")+`))`, viewer, videos)
	if err != nil || s.friends == nil || len(videos) == 0 {
		return shown, err
	}
	if err := s.addFriends(ctx, viewer, videos, shown); err != nil {
		return nil, err
	}
	return shown, nil
}

// addFriends shows the videos for friends whose authors are the viewer's.
func (s *Store) addFriends(ctx context.Context, viewer string, videos []string, shown []bool) error {
	rows, err := s.pool.Query(ctx, `
		SELECT place, author_id FROM unnest($2::text[]) WITH ORDINALITY AS v (id, place)
		JOIN privacy_video ON video_id = id
		WHERE status = 'FRIENDS' AND author_id <> $1 AND `+notBlockedWith("author_id"), viewer, videos)
	if err != nil {
		return fmt.Errorf("asking what is for friends: %w", err)
	}
	var place int64
	var author string
	var places []int64
	var authors []string
	if _, err = pgx.ForEachRow(rows, []any{&place, &author}, func() error {
		places, authors = append(places, place), append(authors, author)
		return nil
	}); err != nil {
		return fmt.Errorf("asking what is for friends: %w", err)
	}
	friends, err := s.befriended(ctx, viewer, authors)
	if err != nil {
		return err
	}
	for i, at := range places {
		shown[at-1] = friends[i]
	}
	return nil
}
