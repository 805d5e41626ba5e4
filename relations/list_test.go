package relations

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/topology"
)

// walk reads a whole list in pages.
func walk(t testing.TB, s *Store, user string, limit int, between func(page int)) (targets []string) {
	t.Helper()
	q := ListQuery{User: user, State: topology.Liked, Limit: limit}
	for page := 0; ; page++ {
		p, err := s.List(context.Background(), q)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Facts) > limit || p.More && len(p.Facts) != limit {
			t.Fatalf("page %d has %d facts of %d, more %t", page, len(p.Facts), limit, p.More)
		}
		for _, f := range p.Facts {
			targets = append(targets, f.Relation.Target)
			q.After = ListPosition{f.StateChangedAt, f.Relation.Target}
		}
		if !p.More {
			return targets
		}
		if between != nil {
			between(page)
		}
	}
}

func TestListIsNewestFirstAndOnlyOfItsState(t *testing.T) {
	s := open(t, 2, nil)
	before := time.Now().Add(-time.Minute)
	for i := range 9 {
		mustSet(t, s, command(fmt.Sprint("like", i), relation(topology.Like, "u7", fmt.Sprint("V", i)), topology.Liked))
		mustSet(t, s, command(fmt.Sprint("other", i), relation(topology.Like, "u8", fmt.Sprint("W", i)), topology.Liked))
		mustSet(t, s, command(fmt.Sprint("fav", i), relation(topology.Favorite, "u7", fmt.Sprint("F", i)), topology.Favorited))
	}
	mustSet(t, s, command("gone", relation(topology.Like, "u7", "V3"), topology.Unliked))
	mustSet(t, s, command("down", relation(topology.Like, "u7", "V5"), topology.Disliked))
	mustSet(t, s, command("off", relation(topology.Like, "u7", "V1"), topology.Unliked))
	mustSet(t, s, command("again", relation(topology.Like, "u7", "V1"), topology.Liked))
	want := "V1 V8 V7 V6 V4 V2 V0"
	for _, limit := range []int{1, 2, 3, 7, 8, MaxListPage} {
		if got := strings.Join(walk(t, s, "u7", limit, nil), " "); got != want {
			t.Errorf("pages of %d: %s, want %s", limit, got, want)
		}
	}
	p, err := s.List(context.Background(), ListQuery{User: "nobody", State: topology.Following, Limit: 5})
	if err != nil || len(p.Facts) != 0 || p.More || p.AsOf.At.Before(before) || p.AsOf.Seal != 0 || !p.AsOf.SealedAt.IsZero() {
		t.Errorf("nobody's list is %+v, %v", p, err)
	}
}

func TestListIncludesItsSeal(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, nil)
	mustSet(t, s, command("op", relation(topology.Like, "u7", "V1"), topology.Liked))
	sealed, err := seal(context.Background(), dial(t, urls[0]), 0, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.List(context.Background(), ListQuery{User: "u7", State: topology.Liked, Limit: 5})
	if err != nil || len(p.Facts) != 1 || p.AsOf.Seal != sealed.number || !p.AsOf.SealedAt.Equal(sealed.at) || p.AsOf.At.Before(sealed.at) {
		t.Errorf("list %+v, %v of seal %+v", p, err, sealed)
	}
}

// TestListUnderChange walks a list while other facts of it come and go: each
// that stays is told once.
func TestListUnderChange(t *testing.T) {
	s := open(t, 1, nil)
	like := func(id, target string, state topology.State) {
		mustSet(t, s, command(id, relation(topology.Like, "u7", target), state))
	}
	const all = 60
	for i := range all {
		like(fmt.Sprint("op", i), strconv.Itoa(i), topology.Liked)
	}
	got := walk(t, s, "u7", 7, func(page int) {
		like(fmt.Sprint("un", page), strconv.Itoa(page*3), topology.Unliked) // gone, or gone soon
		like(fmt.Sprint("re", page), strconv.Itoa(page*3), topology.Liked)   // before the place now
		like(fmt.Sprint("new", page), fmt.Sprint("N", page), topology.Liked)
	})
	times := map[string]int{}
	for _, target := range got {
		times[target]++
	}
	for i := range all {
		if n := times[strconv.Itoa(i)]; n > 1 || n == 0 && i%3 != 0 {
			t.Errorf("target %d is told %d times", i, n)
		}
	}
}

func TestListTiesOfTime(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, nil)
	active := fillList(t, urls[0], 25, "timestamptz '2026-08-19 10:20:30.123456+00'")
	got := walk(t, s, "u7", 4, nil)
	seen := map[string]bool{}
	for i, target := range got {
		if seen[target] || i > 0 && target >= got[i-1] {
			t.Fatalf("%v", got)
		}
		seen[target] = true
	}
	if len(got) != active {
		t.Errorf("%d of %d facts of one time", len(got), active)
	}
}

// fillList writes n likes of u7; the SQL at says when that of number n changed.
// Every tenth has ended.
func fillList(t testing.TB, url string, n int, at string) (active int) {
	t.Helper()
	conn := dial(t, url)
	for _, sql := range []string{`
		INSERT INTO relation (user_id, kind, target_id, state, version, state_changed_at, last_operation_id, created_at, updated_at)
		SELECT 'u7', 1, 'V' || lpad(n::text, 7, '0'), CASE WHEN n % 10 = 0 THEN 1 ELSE 2 END, 1, ` + at + `, 'op', now(), now()
		FROM generate_series(1, ` + strconv.Itoa(n) + `) AS n`,
		"ANALYZE relation",
	} {
		if _, err := conn.Exec(context.Background(), sql); err != nil {
			t.Fatal(err)
		}
	}
	return n - n/10
}

// TestListCostsTheSameHoweverDeep counts the pages of the database that a page
// of the list touches.
func TestListCostsTheSameHoweverDeep(t *testing.T) {
	urls := migrated(t, 1)
	fillList(t, urls[0], 50_000, "timestamptz '2026-08-19 10:20:30+00' - n * interval '1 second'")
	config, err := parseURL(0, urls[0])
	if err != nil {
		t.Fatal(err)
	}
	conn, err := connect(context.Background(), config, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer discard(conn)
	deep := time.Date(2026, 8, 19, 10, 20, 30, 0, time.UTC).Add(-45_000 * time.Second)
	first := explain(t, conn, listSQL+listOrderSQL, "u7", 1, 2, 21)
	last := explain(t, conn, listSQL+listNextSQL+listOrderSQL, "u7", 1, 2, 21, deep, "V")
	for name, plan := range map[string]string{"first": first, "deep": last} {
		if !strings.Contains(plan, "relation_list") || strings.Contains(plan, "Sort") || strings.Contains(plan, "Filter") {
			t.Errorf("the %s page does not follow the list's index:\n%s", name, plan)
		}
		if n := buffers(t, plan); n > 40 {
			t.Errorf("the %s page of 20 touches %d database pages:\n%s", name, n, plan)
		}
	}
	t.Logf("database pages: first %d, after 45,000 %d", buffers(t, first), buffers(t, last))
}

func explain(t testing.TB, conn *pgx.Conn, sql string, args ...any) string {
	t.Helper()
	rows, err := conn.Query(context.Background(), "EXPLAIN (ANALYZE, BUFFERS, TIMING off, SUMMARY off) "+sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

// buffers is how many pages the plan's first node, and so all, has touched.
func buffers(t testing.TB, plan string) (n int) {
	t.Helper()
	_, after, found := strings.Cut(plan, "Buffers: shared ")
	line, _, _ := strings.Cut(after, "\n")
	for _, field := range strings.Fields(line) {
		if name, value, ok := strings.Cut(field, "="); ok && (name == "hit" || name == "read") {
			v, err := strconv.Atoi(value)
			if err != nil {
				t.Fatal(err)
			}
			n += v
		}
	}
	if !found || n == 0 {
		t.Fatalf("the plan tells no buffers:\n%s", plan)
	}
	return n
}

func TestListRefusesWhatIsNoList(t *testing.T) {
	s := open(t, 1, nil)
	for _, q := range []ListQuery{
		{User: "", State: topology.Liked, Limit: 1},
		{User: "u\n", State: topology.Liked, Limit: 1},
		{User: "u", State: 0, Limit: 1},
		{User: "u", State: topology.Liked, Limit: 0},
		{User: "u", State: topology.Liked, Limit: MaxListPage + 1},
	} {
		if _, err := s.List(context.Background(), q); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", q, err)
		}
	}
}
