package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/emitters/cdc"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/evidence"
	"github.com/tidemark/tidemark/relations"
)

func newCDCStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "How each shard's change feed is; exit 3 when a slot or publication is not as it should be",
		Long: "How each shard's change feed is: its slot and who reads it, how far it is behind, what the outbox has\n" +
			"that is not published, the emitters and their last errors.\n\n" +
			"Exit 3 when a slot is missing, lost or of another kind, or a publication is missing or was altered.\n" +
			"Lag, a pause and open gaps are shown and do not change the exit code.",
		Args: noArgs,
	}
	at := whereFlags(cmd)
	chosen := shardFlag(cmd)
	out := outputFlag(cmd, "table", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		cfg, err := at.load(config.PartControl, config.PartPostgres)
		if err != nil {
			return err
		}
		shards, err := chosen.of(cfg)
		if err != nil {
			return err
		}
		list, err := feedStatuses(cmd.Context(), cfg, shards)
		if err != nil {
			return err
		}
		if err := out.print(cmd.OutOrStdout(), list, func(w io.Writer) error { return feedTable(w, list) }); err != nil {
			return err
		}
		return feedVerdict(list)
	}
	return cmd
}

// feedVerdict is what the exit code tells: a shard that does not answer is not
// one that was found wrong.
func feedVerdict(list []feedJSON) error {
	var wrong error
	for _, f := range list {
		if f.Error != "" {
			return fmt.Errorf("shard %d: %s", f.Shard, f.Error)
		}
		if len(f.Problems) > 0 {
			wrong = errDifferent
		}
	}
	return wrong
}

// feedJSON is a shard's change feed as --output json prints it.
type feedJSON struct {
	Shard       int             `json:"shard"`
	Error       string          `json:"error,omitempty"` // the shard does not answer; the rest is empty then
	Problems    []string        `json:"problems"`
	Slot        slotJSON        `json:"slot"`
	Publication publicationJSON `json:"publication"`
	Paused      *pauseJSON      `json:"paused,omitempty"`
	Reader      *readerJSON     `json:"reader,omitempty"`
	Emitters    []emitterJSON   `json:"emitters"`
	// LagSeconds: the feed is late by this much at least, as the seals tell.
	// OldestUnpublishedSeconds and UnpublishedRows are bounds from above. All
	// are null while there is no position.
	LagBytes                 *int64     `json:"lagBytes"`
	LagSeconds               *float64   `json:"lagSeconds"`
	OldestUnpublishedSeconds *float64   `json:"oldestUnpublishedSeconds"`
	UnpublishedRows          *int64     `json:"unpublishedRows"` // at most maxCountedRows
	VerifiedSeal             uint64     `json:"verifiedSeal"`    // by intake
	OpenGaps                 int        `json:"openGaps"`
	MissingRows              int64      `json:"missingRows"` // that they name: holes among versions
	Outbox                   outboxJSON `json:"outbox"`
}

type slotJSON struct {
	Name          string `json:"name"`
	Exists        bool   `json:"exists"`
	Active        bool   `json:"active"`
	WALStatus     string `json:"walStatus,omitempty"`
	ConfirmedLSN  string `json:"confirmedLsn,omitempty"`
	ServerLSN     string `json:"serverLsn,omitempty"`
	RetainedBytes int64  `json:"retainedBytes"`
	SafeBytes     *int64 `json:"safeBytes,omitempty"` // that may still be written; absent: no limit is set
}

type publicationJSON struct {
	Name     string `json:"name"`
	Exists   bool   `json:"exists"`
	Complete bool   `json:"complete"` // every insert of the outbox, and nothing else
}

type pauseJSON struct {
	Since  time.Time `json:"since"`
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
}

type readerJSON struct {
	PID         int       `json:"pid"`
	Application string    `json:"application"`
	Client      string    `json:"client,omitempty"`
	Since       time.Time `json:"since"`
	Instance    string    `json:"instance,omitempty"` // of tidemark; absent: another reader, such as Debezium
}

type emitterJSON struct {
	Instance    string     `json:"instance"`
	State       string     `json:"state"`
	Since       time.Time  `json:"since"`
	Restarts    int64      `json:"restarts"`
	LastError   string     `json:"lastError,omitempty"`
	LastErrorAt *time.Time `json:"lastErrorAt,omitempty"`
}

type outboxJSON struct {
	Bytes int64      `json:"bytes"`
	Parts []partJSON `json:"partitions"`
}

type partJSON struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	Rows  int64  `json:"rows"` // estimated; -1: not known
}

// maxCountedRows bounds how many unpublished rows are counted.
const maxCountedRows = 1_000_000

// emitterSilence is how long an emitter that says nothing still counts as one
// that works; they report every few seconds.
const emitterSilence = 15 * time.Second

// feedLook is what is read once for all shards.
type feedLook struct {
	cfg      config.Config
	db       *control.DB
	outbox   *relations.Outbox
	pauses   map[int]control.FeedPause
	emitters []control.FeedEmitter
}

func feedStatuses(ctx context.Context, cfg config.Config, shards []int) ([]feedJSON, error) {
	l := &feedLook{cfg: cfg}
	var err error
	if l.db, err = control.Open(ctx, cfg.Control); err != nil {
		return nil, err
	}
	defer l.db.Close()
	if l.pauses, err = l.db.FeedPauses(ctx); err != nil {
		return nil, err
	}
	if l.emitters, err = l.db.FeedEmitters(ctx, emitterSilence); err != nil {
		return nil, err
	}
	if l.outbox, err = relations.OpenOutbox(cfg.Postgres); err != nil {
		return nil, err
	}
	defer l.outbox.Close()
	list := make([]feedJSON, len(shards))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i, shard := range shards {
		g.Go(func() error {
			f, err := l.shard(ctx, shard)
			if err != nil {
				f = feedJSON{Shard: shard, Error: err.Error(), Problems: []string{}, Emitters: []emitterJSON{}}
			}
			list[i] = f
			return ctx.Err()
		})
	}
	return list, g.Wait()
}

func (l *feedLook) shard(ctx context.Context, shard int) (feedJSON, error) {
	f := feedJSON{Shard: shard, Problems: []string{}, Emitters: []emitterJSON{}, Outbox: outboxJSON{Parts: []partJSON{}}}
	seen, err := cdc.Inspect(ctx, l.cfg.Postgres[shard], slotName(l.cfg.Prefix, shard), relations.Publication)
	if err != nil {
		return f, err
	}
	f.inspected(seen)
	if p, ok := l.pauses[shard]; ok {
		f.Paused = &pauseJSON{p.At.UTC(), p.Who, p.Reason}
	}
	published := l.reported(&f)
	if err := l.backlog(ctx, &f, seen.Slot, published); err != nil {
		return f, err
	}
	return f, l.verified(ctx, &f)
}

func (f *feedJSON) inspected(i cdc.Inspection) {
	s := i.Slot
	f.Slot = slotJSON{Name: s.Name, Exists: s.Exists, Active: s.Reader != nil, WALStatus: s.WALStatus, RetainedBytes: s.RetainedBytes}
	if s.SafeBytes >= 0 {
		f.Slot.SafeBytes = &s.SafeBytes
	}
	if s.Confirmed != 0 {
		f.Slot.ConfirmedLSN, f.Slot.ServerLSN, f.LagBytes = s.Confirmed.String(), s.ServerLSN.String(), &s.LagBytes
	}
	if r := s.Reader; r != nil {
		f.Reader = &readerJSON{PID: r.PID, Application: r.Application, Client: r.Client, Since: r.Since.UTC()}
	}
	switch {
	case !s.Exists:
		f.problem("replication slot %s does not exist: `tidemark cdc create-slot --shard %d`", s.Name, f.Shard)
	case s.Unusable != nil:
		f.problem("%v: `tidemark cdc drop-slot --shard %d`, then create-slot", s.Unusable, f.Shard)
	case s.Making:
		f.problem("replication slot %s is being created and has no position yet", s.Name)
	}
	f.Publication = publicationJSON{relations.Publication, i.PublicationExists, i.PublicationError == nil}
	if err := i.PublicationError; err != nil {
		f.problem("%v", err)
	}
}

func (f *feedJSON) problem(format string, args ...any) {
	f.Problems = append(f.Problems, fmt.Sprintf(format, args...))
}

// reported adds what the shard's emitters say, and returns the newest time up
// to which one of them knows everything to be published.
func (l *feedLook) reported(f *feedJSON) (published time.Time) {
	for _, e := range l.emitters {
		if e.Shard != f.Shard {
			continue
		}
		f.Emitters = append(f.Emitters, emitterJSON{e.Instance, e.State, e.Since.UTC(), e.Restarts, e.LastError, e.LastErrorAt})
		if f.Reader != nil && e.PID == f.Reader.PID {
			f.Reader.Instance = e.Instance
		}
		if e.PublishedAt != nil && e.PublishedAt.After(published) {
			published = *e.PublishedAt
		}
	}
	return published
}

// backlog adds what the outbox has beyond the slot's position.
func (l *feedLook) backlog(ctx context.Context, f *feedJSON, s cdc.SlotStatus, published time.Time) error {
	b, err := l.outbox.Backlog(ctx, f.Shard, uint64(s.Confirmed))
	if err != nil {
		return err
	}
	parts, err := l.outbox.Parts(ctx, f.Shard)
	if err != nil {
		return err
	}
	f.Outbox.Bytes = b.Bytes
	for _, p := range parts {
		f.Outbox.Parts = append(f.Outbox.Parts, partJSON(p))
	}
	if s.Confirmed == 0 {
		return nil
	}
	if s.LagBytes <= 0 {
		b = evidence.Backlog{} // the position is the end of the log
	}
	rows := int64(0)
	if b.Rows {
		if rows, err = l.outbox.CountFrom(ctx, f.Shard, b.FromID, maxCountedRows); err != nil {
			return err
		}
	}
	oldest := b.Oldest
	if age := time.Since(published); !published.IsZero() && age < oldest {
		oldest = max(age, 0)
	}
	late, age := min(b.Behind, oldest).Seconds(), oldest.Seconds()
	f.LagSeconds, f.OldestUnpublishedSeconds, f.UnpublishedRows = &late, &age, &rows
	return nil
}

// verified adds what intake has found.
func (l *feedLook) verified(ctx context.Context, f *feedJSON) error {
	source, err := l.db.Source(ctx, f.Shard)
	if err != nil {
		return err
	}
	f.VerifiedSeal = source.VerifiedSeal
	open, err := l.db.Gaps(ctx, control.GapFilter{Shard: &f.Shard, States: []control.GapState{control.GapOpen, control.GapHealing}})
	for _, g := range open {
		f.OpenGaps++
		f.MissingRows += g.Rows
	}
	return err
}
