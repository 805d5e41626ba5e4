package relations

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/topology"
)

// friendReads go on at a time for one question.
const friendReads = 8

// Friends tells which of others follow the user and are followed by the user, as
// committed. It reads the user's shard once, and that of each whom the user
// follows.
func (s *Store) Friends(ctx context.Context, user string, others []string) ([]bool, error) {
	followed, err := s.States(ctx, user, topology.Follow, others)
	if err != nil {
		return nil, err
	}
	friends := make([]bool, len(others))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(friendReads)
	for i, f := range followed {
		if f.State != topology.Following {
			continue
		}
		g.Go(func() error {
			back, err := s.States(ctx, others[i], topology.Follow, []string{user})
			if err == nil {
				friends[i] = back[0].State == topology.Following
			}
			return err
		})
	}
	return friends, g.Wait()
}
