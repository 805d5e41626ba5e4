package privacy

import (
	"context"
	"fmt"
)

// Friends tells which of others are friends of user: each follows the other, as
// committed. Following alone would make anybody a friend who says so.
type Friends func(ctx context.Context, user string, others []string) ([]bool, error)

// befriended asks for the friends among others; nobody is one if there is no one
// to ask.
func (s *Store) befriended(ctx context.Context, user string, others []string) ([]bool, error) {
	if s.friends == nil || len(others) == 0 {
		return make([]bool, len(others)), nil
	}
	friends, err := s.friends(ctx, user, others)
	if err != nil {
		return nil, fmt.Errorf("asking who are friends: %w", err)
	}
	return friends, nil
}
