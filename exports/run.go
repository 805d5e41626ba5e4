package exports

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/views"
)

// Config says where an export comes from.
type Config struct {
	Lists Lists
	// Barrier takes the barrier of an id that no other had, and gives the cuts
	// through all shards.
	Barrier func(ctx context.Context, id string) ([]Cut, error)
	Rules   Rules
	Feed    Feed
	Audit   Audit
	// ReverseGeneration that Lists reads.
	ReverseGeneration uint32
	// RowsPerPart is how many rows a part has, and how many are in memory;
	// default 100,000.
	RowsPerPart int
	// Patience is how long to wait until the change feed is proven up to the
	// barrier; default a minute.
	Patience time.Duration
	// Tell is told how far the export is, after each part and at each turn; nil:
	// nobody.
	Tell func(Progress)
}

// Lists reads lists as they were at a barrier; see views.LikersAt.
type Lists interface {
	Open(ctx context.Context, list views.ListAt) error
	Walk(ctx context.Context, list views.ListAt, after *views.Liker, do func([]views.Liker) error) error
	Close(ctx context.Context, list views.ListAt) error
}

// Rules decide which accounts are shown; see privacy.Store.
type Rules interface {
	Revision(ctx context.Context) (int64, error)
	HiddenAt(ctx context.Context, revision int64, users []string) ([]bool, error)
}

// Audit writes a line of the audit; see control.DB.
type Audit interface {
	Audit(ctx context.Context, e control.Entry) error
}

// Progress is how far an export is.
type Progress struct {
	Counts        // so far, also of what is not in a part yet
	Parts  int    // whole
	Turn   string // what happened, when it is more than that rows were read
}

// Defaults of Config.
const (
	DefaultRowsPerPart = 100_000
	DefaultPatience    = time.Minute
)

// maxBarriers is how many barriers an export is tried at.
const maxBarriers = 5

// errBegunAnew says that the export at its barrier cannot be finished, and why.
var errBegunAnew = errors.New("the export cannot be finished at its barrier")

// Run writes an export into a directory, or goes on with the one that was begun
// there. When it ends with an error that is not ErrSpec or ErrDirectory, the
// same call goes on.
func Run(ctx context.Context, cfg Config, spec Spec, dir string) (Manifest, error) {
	if err := spec.Check(); err != nil {
		return Manifest{}, err
	}
	if cfg.RowsPerPart == 0 {
		cfg.RowsPerPart = DefaultRowsPerPart
	}
	if cfg.Patience == 0 {
		cfg.Patience = DefaultPatience
	}
	if cfg.Tell == nil {
		cfg.Tell = func(Progress) {}
	}
	d, err := openDirectory(dir)
	if err != nil {
		return Manifest{}, err
	}
	defer d.close()
	j, err := d.begun(spec)
	if err != nil {
		return Manifest{}, err
	}
	x := &exporter{Config: cfg, dir: d, spec: spec, j: j}
	if m, err := ReadManifest(dir); err == nil { // only the journal was left to remove
		x.close(ctx)
		return m, d.remove(journalName)
	}
	return x.run(ctx)
}

// exporter writes one export.
type exporter struct {
	Config
	dir  *directory
	spec Spec
	j    *journal // nil: nothing is begun

	all  *digest // of the rows in j.Parts
	rows []Row   // of the next part
	Counts
}

func (x *exporter) run(ctx context.Context) (Manifest, error) {
	if x.j != nil {
		if err := x.resume(ctx); err != nil {
			return Manifest{}, err
		}
	}
	for {
		if x.j == nil || x.j.AsOf.Barrier == "" {
			if err := x.begin(ctx); err != nil {
				return Manifest{}, err
			}
		}
		m, err := x.finish(ctx)
		if !errors.Is(err, views.ErrListGone) && !errors.Is(err, errBegunAnew) {
			return m, err
		}
		if err := x.giveUp(ctx, err); err != nil {
			return Manifest{}, err
		}
	}
}

func (x *exporter) list() views.ListAt {
	return views.ListAt{Barrier: x.j.AsOf.Barrier, Kind: x.spec.Kind, Target: x.spec.Target}
}

func (x *exporter) tell(turn string) {
	x.Tell(Progress{Counts: x.Counts, Parts: len(x.j.Parts), Turn: turn})
}

// resume reads the parts that are whole, so that their rows are in the checksum;
// what is behind one that is not is read again.
func (x *exporter) resume(ctx context.Context) error {
	x.all = newDigest()
	for i, p := range x.j.Parts {
		if err := readPart(x.dir.path, p, x.spec.Format, func(r Row) error { x.all.add(r); return nil }); err != nil {
			x.j.BegunAnew = append(x.j.BegunAnew, fmt.Sprintf("part %d was not whole any more: %v", i+1, err))
			return x.forget()
		}
	}
	x.Counts = x.j.Counts
	if x.j.AsOf.Barrier != "" {
		if err := x.audit(ctx, "export.resumed", nil); err != nil {
			return err
		}
		x.tell(fmt.Sprintf("goes on at barrier %s behind %d parts", x.j.AsOf.Barrier, len(x.j.Parts)))
	}
	return x.dir.removeAllBut(x.j.Parts)
}

// begin takes a barrier.
func (x *exporter) begin(ctx context.Context) error {
	if x.j == nil {
		x.j = &journal{Version: manifestVersion, Spec: x.spec, Started: time.Now().UTC(), BegunAnew: []string{}}
	}
	j := x.j
	var err error
	if j.Gaps, err = x.gaps(ctx); err != nil {
		return err
	}
	j.AsOf = Moment{Barrier: uuid.NewString(), ReverseGeneration: x.ReverseGeneration}
	err = x.Lists.Open(ctx, x.list())
	if err == nil {
		j.AsOf.Shards, err = x.Barrier(ctx, j.AsOf.Barrier)
	}
	if err == nil {
		j.AsOf.RulesRevision, err = x.Rules.Revision(ctx)
	}
	if err == nil {
		err = x.audit(ctx, "export.begun", nil) // before a row is read
	}
	if err == nil {
		err = x.dir.writeJSON(journalName, j)
	}
	if err != nil {
		x.close(ctx)
		j.AsOf = Moment{}
		return fmt.Errorf("beginning an export: %w", err)
	}
	x.all = newDigest()
	x.tell("reads at barrier " + j.AsOf.Barrier)
	return nil
}

// AuditSubject names a target's exports in the audit.
func AuditSubject(k topology.Kind, target string) string {
	return "export:" + topology.TargetKey(k, target)
}

func (x *exporter) audit(ctx context.Context, action string, detail map[string]any) error {
	all := map[string]any{"barrier": x.j.AsOf.Barrier, "accounts": x.spec.Accounts, "format": x.spec.Format}
	maps.Copy(all, detail)
	return x.Audit.Audit(ctx, control.Entry{
		Who: x.spec.By, Action: action, Subject: AuditSubject(x.spec.Kind, x.spec.Target), Reason: x.spec.Purpose, Detail: all,
	})
}

// closeTimeout bounds what is only courtesy: owners forget by themselves.
const closeTimeout = 5 * time.Second

func (x *exporter) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = x.Lists.Close(ctx, x.list()) // whoever does not hear it forgets the list in time
}

// giveUp leaves a barrier and all that was read at it.
func (x *exporter) giveUp(ctx context.Context, why error) error {
	x.close(ctx)
	x.j.BegunAnew = append(x.j.BegunAnew, fmt.Sprintf("barrier %s: %v", x.j.AsOf.Barrier, why))
	x.tell(fmt.Sprintf("begins anew, barrier %s is given up: %v", x.j.AsOf.Barrier, why))
	if len(x.j.BegunAnew) >= maxBarriers {
		_ = x.forget()
		return fmt.Errorf("the export was begun at %d barriers and finished at none: %w", maxBarriers, why)
	}
	return x.forget()
}

// forget makes the journal one of nothing but reasons.
func (x *exporter) forget() error {
	x.j.AsOf, x.j.Gaps, x.j.Counts, x.j.Parts, x.j.Last = Moment{}, nil, Counts{}, nil, nil
	x.rows, x.Counts = nil, Counts{}
	if err := x.dir.writeJSON(journalName, x.j); err != nil {
		return err
	}
	return x.dir.removeAllBut(nil)
}

// finish reads what is left, and makes an export of it.
func (x *exporter) finish(ctx context.Context) (Manifest, error) {
	if err := x.read(ctx); err != nil {
		return Manifest{}, err
	}
	x.tell("waits for the proof that the change feed was whole up to the barrier")
	if err := x.prove(ctx); err != nil {
		return Manifest{}, err
	}
	j := x.j
	m := Manifest{
		Version: manifestVersion, Spec: x.spec, AsOf: j.AsOf, Counts: x.Counts, Withheld: x.Relations - x.Rows, Checksum: x.all.sum(),
		Parts: append([]Part{}, j.Parts...), StartedAt: j.Started, FinishedAt: time.Now().UTC(), BegunAnew: j.BegunAnew,
	}
	err := x.audit(ctx, "export.finished", map[string]any{"relations": m.Relations, "rows": m.Rows, "checksum": m.Checksum})
	if err != nil {
		return Manifest{}, err
	}
	if err := x.dir.writeJSON(ManifestName, m); err != nil {
		return Manifest{}, err
	}
	x.close(ctx)
	return m, x.dir.remove(journalName)
}

// read takes the list behind what is read already.
func (x *exporter) read(ctx context.Context) error {
	var after *views.Liker
	if l := x.j.Last; l != nil {
		after = &views.Liker{User: l.User, LikedAt: time.UnixMicro(l.LikedAtUs).UTC()}
	}
	x.rows, x.Counts = nil, x.j.Counts
	var last views.Liker
	err := x.Lists.Walk(ctx, x.list(), after, func(likers []views.Liker) error {
		for len(likers) > 0 {
			n := min(len(likers), x.RowsPerPart-len(x.rows)) // a part ends behind a relation that was read
			if err := x.take(ctx, likers[:n]); err != nil {
				return err
			}
			last, likers = likers[n-1], likers[n:]
			if len(x.rows) == x.RowsPerPart {
				if err := x.part(last); err != nil {
					return err
				}
			}
		}
		x.tell("")
		return nil
	})
	if err != nil || len(x.rows) == 0 {
		return err
	}
	return x.part(last)
}

// take makes rows of relations whose accounts are shown.
func (x *exporter) take(ctx context.Context, likers []views.Liker) error {
	hidden := make([]bool, len(likers))
	if x.spec.Accounts == Shown {
		users := make([]string, len(likers))
		for i, l := range likers {
			users[i] = l.User
		}
		var err error
		if hidden, err = x.hidden(ctx, users); err != nil {
			return err
		}
	}
	for i, l := range likers {
		x.Relations++
		if hidden[i] {
			continue
		}
		x.Rows++
		x.rows = append(x.rows, Row(l))
	}
	return nil
}

// usersPerQuestion bounds a question to the control database.
const usersPerQuestion = 1000

func (x *exporter) hidden(ctx context.Context, users []string) (hidden []bool, err error) {
	for len(users) > 0 {
		n := min(len(users), usersPerQuestion)
		some, err := x.Rules.HiddenAt(ctx, x.j.AsOf.RulesRevision, users[:n])
		if err != nil {
			return nil, err
		}
		hidden, users = append(hidden, some...), users[n:]
	}
	return hidden, nil
}

// part writes the rows that are gathered, which end at last.
func (x *exporter) part(last views.Liker) error {
	p, err := x.dir.writePart(len(x.j.Parts)+1, x.spec.Format, x.rows)
	if err != nil {
		return err
	}
	for _, r := range x.rows {
		x.all.add(r)
	}
	x.rows = x.rows[:0]
	x.j.Parts, x.j.Counts = append(x.j.Parts, p), x.Counts
	x.j.Last = &place{last.LikedAt.UnixMicro(), last.User}
	return x.dir.writeJSON(journalName, x.j)
}
