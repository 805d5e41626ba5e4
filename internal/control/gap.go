package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/internal/idset"
)

// Cause is what probably made a gap; a closed list.
type Cause string

// The causes.
const (
	CauseSlotRecreated  Cause = "slot-recreated"      // the slot was dropped; what was committed before the new one is not in it
	CausePositionJumped Cause = "position-jumped"     // the slot's position passed what was not sent
	CausePublication    Cause = "publication-altered" // the publication left the outbox out for a while
	CauseTopicTruncated Cause = "topic-truncated"     // the broker lost records before intake read them
	CauseRowDeleted     Cause = "row-deleted"         // someone deleted the row from the outbox
	CauseTooManyIDs     Cause = "too-many-ids"        // an interval too long to check: every row of it is named
	CauseContradiction  Cause = "contradiction"       // rows came that are not those of the outbox: every row of the interval is named
	CauseSourceWentBack Cause = "source-went-back"    // the shard lost what it had, in a failover or a restore
	CauseUnknown        Cause = "unknown"
)

// GapState is how far the healing of a gap is.
type GapState string

// The states of a gap.
const (
	GapOpen    GapState = "OPEN"
	GapHealing GapState = "HEALING" // records that heal it are in the change feed
	GapHealed  GapState = "HEALED"  // and intake has read them
)

// Gap is what a shard's feed did not bring, by seal.
type Gap struct {
	ID        int64
	Shard     int
	Seal      uint64
	Missing   idset.Ranges // outbox ids
	Rows      int64        // how many rows are missing
	Exact     bool         // false: Missing may hold other ids too
	Cause     Cause
	Note      string
	State     GapState
	Revision  int64
	FirstSeen time.Time
	SentFirst *int64 // offsets of the records that heal it
	SentLast  *int64
	HealedAt  *time.Time
	HealedBy  string
}

// Subject names the gap in the audit.
func (g Gap) Subject() string { return fmt.Sprintf("gap:%d:%d", g.Shard, g.Seal) }

const gapColumns = `id, shard, seal, missing::text, rows, exact, cause, note, state, revision, first_seen, sent_first, sent_last, healed_at, coalesce(healed_by, '')`

func scanGap(row pgx.CollectableRow) (Gap, error) {
	var g Gap
	var missing string
	var seal int64
	err := row.Scan(&g.ID, &g.Shard, &seal, &missing, &g.Rows, &g.Exact, &g.Cause, &g.Note, &g.State, &g.Revision, &g.FirstSeen,
		&g.SentFirst, &g.SentLast, &g.HealedAt, &g.HealedBy)
	if err != nil {
		return g, err
	}
	g.Seal = uint64(seal)
	g.Missing, err = idset.ParseMultirange(missing)
	return g, err
}

// RaiseGap records a gap, by who. What is known already changes nothing, also
// when it is healed; ids that are new extend the gap and open it again. So do
// known ids when the shard went back later than they were first seen: they stand
// for other rows now, which no healing of before has brought. raised tells that
// something changed.
func (d *DB) RaiseGap(ctx context.Context, g Gap, who string) (raised bool, err error) {
	err = pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		raised, err = raiseGap(ctx, tx, g, who)
		return err
	})
	if err != nil {
		return false, named(fmt.Errorf("recording a gap of shard %d, seal %d: %w", g.Shard, g.Seal, err))
	}
	return raised, nil
}

func raiseGap(ctx context.Context, tx pgx.Tx, g Gap, who string) (bool, error) {
	tag, err := tx.Exec(ctx, `
		INSERT INTO gap (shard, seal, missing, rows, exact, cause, note, first_seen)
		VALUES ($1, $2, $3::text::int8multirange, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING`,
		g.Shard, int64(g.Seal), g.Missing.Multirange(), g.Rows, g.Exact, g.Cause, g.Note, g.FirstSeen)
	if err != nil {
		return false, err
	}
	if tag.RowsAffected() == 0 {
		if extended, err := extendGap(ctx, tx, &g); err != nil || !extended {
			return false, err
		}
	}
	return true, audit(ctx, tx, Entry{Who: who, Action: "gap.raised", Subject: g.Subject(), Detail: map[string]any{
		"rows": g.Rows, "cause": g.Cause, "ids": clip(g.Missing.String(), 1000),
	}})
}

// extendGap adds ids to a gap that is there; g becomes what was added.
func extendGap(ctx context.Context, tx pgx.Tx, g *Gap) (bool, error) {
	found, err := tx.Query(ctx, "SELECT "+gapColumns+" FROM gap WHERE shard = $1 AND seal = $2 FOR UPDATE", g.Shard, int64(g.Seal))
	if err != nil {
		return false, err
	}
	have, err := pgx.CollectExactlyOneRow(found, scanGap)
	if err != nil {
		return false, err
	}
	added := g.Missing.Without(have.Missing)
	reused := g.Cause == CauseSourceWentBack && have.State != GapOpen && g.FirstSeen.After(have.FirstSeen)
	if len(added) == 0 && !reused {
		return false, nil
	}
	rows := have.Rows + min(g.Rows, added.Count())
	all := have.Missing.Union(added)
	cause := g.Cause
	if !reused { // else the audit has all that is missing now
		g.Missing, g.Rows, g.FirstSeen, cause = added, rows-have.Rows, have.FirstSeen, have.Cause
	}
	_, err = tx.Exec(ctx, `
		UPDATE gap SET missing = $2::text::int8multirange, rows = $3, exact = exact AND $4, state = 'OPEN', revision = revision + 1, first_seen = $6, cause = $7,
		    note = CASE WHEN note = '' OR note = $5 THEN $5 ELSE concat_ws('; ', note, nullif($5, '')) END,
		    sent_first = NULL, sent_last = NULL, healed_at = NULL, healed_by = NULL
		WHERE id = $1`, have.ID, all.Multirange(), rows, g.Exact, g.Note, g.FirstSeen, cause)
	return true, err
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "..."
	}
	return s
}

// GapFilter chooses gaps. Its zero value is all of them.
type GapFilter struct {
	Shard  *int
	States []GapState // none: all
}

// Gaps lists gaps by shard and seal.
func (d *DB) Gaps(ctx context.Context, f GapFilter) (out []Gap, err error) {
	states := []string{}
	for _, s := range f.States {
		states = append(states, string(s))
	}
	rows, err := d.pool.Query(ctx, "SELECT "+gapColumns+` FROM gap
		WHERE ($1::integer IS NULL OR shard = $1) AND (cardinality($2::text[]) = 0 OR state = ANY($2))
		ORDER BY shard, seal`, f.Shard, states)
	if err == nil {
		out, err = pgx.CollectRows(rows, scanGap)
	}
	if err != nil {
		return nil, named(fmt.Errorf("reading gaps: %w", err))
	}
	return out, nil
}

// ErrGapChanged says that a gap is not any more what the caller has read.
var ErrGapChanged = errors.New("the gap has changed meanwhile")

// MarkSent notes that the records which heal g, as it was read, are in the
// change feed at offsets first..last.
func (d *DB) MarkSent(ctx context.Context, g Gap, first, last int64, who, note string) error {
	return d.change(ctx, g, Entry{Who: who, Action: "gap.sent", Detail: map[string]any{"first_offset": first, "last_offset": last}}, `
		UPDATE gap SET state = 'HEALING', revision = revision + 1, sent_first = $3, sent_last = $4, healed_by = $5,
		    note = CASE WHEN strpos(note, $6) > 0 THEN note ELSE concat_ws('; ', nullif(note, ''), nullif($6, '')) END
		WHERE id = $1 AND revision = $2`, first, last, who, note)
}

// MarkHealed notes that nothing of g, as it was read, is missing any more.
func (d *DB) MarkHealed(ctx context.Context, g Gap, who string) error {
	return d.change(ctx, g, Entry{Who: who, Action: "gap.healed"}, `
		UPDATE gap SET state = 'HEALED', revision = revision + 1, healed_at = clock_timestamp(), healed_by = $3
		WHERE id = $1 AND revision = $2`, who)
}

// Reopen notes that the records which were to heal g were lost in their turn.
func (d *DB) Reopen(ctx context.Context, g Gap, who, why string) error {
	return d.change(ctx, g, Entry{Who: who, Action: "gap.reopened", Reason: why}, `
		UPDATE gap SET state = 'OPEN', revision = revision + 1, sent_first = NULL, sent_last = NULL, healed_by = NULL
		WHERE id = $1 AND revision = $2`)
}

func (d *DB) change(ctx context.Context, g Gap, e Entry, sql string, args ...any) error {
	e.Subject = g.Subject()
	doing := fmt.Sprintf("changing the gap of shard %d, seal %d", g.Shard, g.Seal)
	changed, err := d.audited(ctx, doing, e, sql, slices.Concat([]any{g.ID, g.Revision}, args)...)
	if err == nil && !changed {
		err = named(fmt.Errorf("%s: %w", doing, ErrGapChanged))
	}
	return err
}
