package views

import (
	"context"
	"errors"
	"fmt"
)

// Likers answers pages of who likes, favorites or follows a target, from the
// processes that own the reverse index's partitions.
type Likers struct{}

// Page answers a page.
func (l *Likers) Page(_ context.Context, q LikersQuery) (LikersPage, error) {
	if q.Limit < 1 || q.Limit > MaxLikersPage {
		return LikersPage{}, fmt.Errorf("limit %d is not in 1..%d: %w", q.Limit, MaxLikersPage, ErrLikersQuery)
	}
	return LikersPage{}, errors.New("not built yet")
}
