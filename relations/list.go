package relations

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/topology"
)

// MaxListPage is the most facts of a page of a list.
const MaxListPage = 1000

// ListQuery asks for a page of what a user is in a state to.
type ListQuery struct {
	User  string
	State topology.State // its kind is the list's
	After ListPosition   // zero: the newest
	Limit int            // 1..MaxListPage
}

// ListPosition stands behind the fact that it names.
type ListPosition struct {
	ChangedAt time.Time // microseconds: the table's precision
	Target    string
}

// ListPage is a part of a user's list, from one snapshot.
type ListPage struct {
	Facts []Fact // newest change first; of one time, by descending target
	More  bool   // facts stood behind the last one
	AsOf  ListAsOf
}

// ListAsOf says what a page includes: every change that was committed at At or
// before, and so everything up to the seal.
type ListAsOf struct {
	Shard    int
	At       time.Time
	Seal     uint64 // newest of the shard; 0 before the first
	SealedAt time.Time
}

// listSQL reads a page; next adds the place that it goes on from. The row
// comparison is what the index relation_list is ordered by, so a page costs a
// descent and its rows, however deep it lies; an OFFSET would read all before.
const (
	listSQL = `
		SELECT ` + factSQL + `
		FROM relation r WHERE user_id = $1 AND kind = $2 AND state = $3`
	listOrderSQL = ` ORDER BY state_changed_at DESC, target_id DESC LIMIT $4`
	listNextSQL  = ` AND (state_changed_at, target_id) < ($5, $6)`
)

// List tells what a user is in a state to, as it is now: between two pages a
// fact that changes moves before the place or goes, and none that stays is
// passed over or comes twice.
func (s *Store) List(ctx context.Context, q ListQuery) (ListPage, error) {
	if err := q.check(); err != nil {
		return ListPage{}, err
	}
	sh := s.of(q.User)
	var page ListPage
	err := sh.read(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		page, err = readList(ctx, conn, q)
		return err
	})
	if err != nil {
		return ListPage{}, fmt.Errorf("reading a user's list: %w", err)
	}
	page.AsOf.Shard = sh.number
	return page, nil
}

func (q ListQuery) check() error {
	switch {
	case !q.State.Valid():
		return fmt.Errorf("%w: the list's state is none", ErrInvalid)
	case q.Limit < 1 || q.Limit > MaxListPage:
		return fmt.Errorf("%w: limit %d is not in 1..%d", ErrInvalid, q.Limit, MaxListPage)
	}
	if err := topology.CheckID(q.User); err != nil {
		return fmt.Errorf("%w: user id %w", ErrInvalid, err)
	}
	return nil
}

// readList reads the page, the newest seal and the time in one snapshot. The
// transaction's time is before its snapshot, so what committed by then is seen.
func readList(ctx context.Context, conn *pgx.Conn, q ListQuery) (page ListPage, err error) {
	sql, args := listSQL, []any{q.User, int16(q.State.Kind()), int16(q.State), q.Limit + 1}
	if q.After != (ListPosition{}) {
		sql, args = sql+listNextSQL, append(args, q.After.ChangedAt, q.After.Target)
	}
	var b pgx.Batch
	b.Queue("begin isolation level repeatable read read only")
	b.Queue(`
		SELECT transaction_timestamp(), coalesce(number, 0), coalesce(sealed_at, 'epoch') FROM (VALUES (1)) AS one
		LEFT JOIN (SELECT number, sealed_at FROM seal ORDER BY number DESC LIMIT 1) AS newest ON true`).
		QueryRow(page.AsOf.scan)
	b.Queue(sql+listOrderSQL, args...).Query(func(rows pgx.Rows) (err error) {
		page.Facts, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (Fact, error) { return scanFact(row) })
		return err
	})
	b.Queue("commit")
	if err := conn.SendBatch(ctx, &b).Close(); err != nil {
		return page, err
	}
	if page.More = len(page.Facts) > q.Limit; page.More {
		page.Facts = page.Facts[:q.Limit]
	}
	return page, nil
}

func (a *ListAsOf) scan(row pgx.Row) error {
	var seal int64
	if err := row.Scan(&a.At, &seal, &a.SealedAt); err != nil {
		return fmt.Errorf("reading the newest seal: %w", err)
	}
	a.At, a.Seal, a.SealedAt = a.At.UTC(), uint64(seal), a.SealedAt.UTC()
	if seal == 0 {
		a.SealedAt = time.Time{}
	}
	return nil
}
