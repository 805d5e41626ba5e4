package drills

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/tidemark/tidemark/internal/verify"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

// hidingRules hide what every fourth user begins, so that counts hold hidden
// relations of both kinds whatever is broken. The drill's seed decides nothing
// here: who is hidden follows from the user's id.
const hidingRules = `rules:
  - {name: drill-risk, when: {percentOfUsers: 15}, action: hide, by: risk, reason: drill.risk}
  - {name: drill-policy, when: {percentOfUsers: 12}, action: hide, by: policy, reason: drill.policy}
`

func (s *system) writeHidingRules() (file string, err error) {
	file = filepath.Join(s.dir, "risk.yaml")
	return file, os.WriteFile(file, []byte(hidingRules), 0o600)
}

// operatorPace is the time between two hidings by the operator.
const operatorPace = 100 * time.Millisecond

// startOperator hides and shows relations that exist, until its end is called,
// in drills whose users do not compare versions with their own commands: a hiding
// is a version that no user asked for.
func (s *system) startOperator(ctx context.Context) error {
	if s.lossy != nil || s.askers != nil || s.readers != nil {
		return nil
	}
	store, err := s.openRelations(ctx)
	if err != nil {
		return err
	}
	outbox, err := relations.OpenOutbox(s.cfg.Postgres)
	if err != nil {
		store.Close()
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	s.endOperator = func() { cancel(); <-ended }
	go func() {
		defer close(ended)
		defer store.Close()
		defer outbox.Close()
		s.hideAndShow(ctx, store, outbox)
	}()
	return nil
}

// hideAndShow goes on beside databases that are away: what failed may be committed or
// not, as of any command.
func (s *system) hideAndShow(ctx context.Context, store *relations.Store, outbox *relations.Outbox) {
	rnd := rand.New(rand.NewPCG(s.seed, 0x6f70657261746f72))
	hidings := []topology.Hiding{{}, {By: topology.HiddenByRisk, Reason: "drill.case"}, {By: topology.HiddenByPolicy, Reason: "drill.case"}}
	for n := 0; sleep(ctx, operatorPace) == nil; n++ {
		after := topology.Relation{Kind: topology.Like, User: fmt.Sprintf("u%d", rnd.IntN(3000)), Target: "0"}
		page, err := outbox.Relations(ctx, rnd.IntN(systemShards), after, 20)
		if err != nil {
			continue
		}
		for i, f := range page {
			if f.State != f.Relation.Kind.Active() {
				continue
			}
			res, err := store.SetHiding(ctx, relations.HidingCommand{
				OperationID: fmt.Sprintf("drill-%d-%d", n, i), Relation: f.Relation, Hiding: hidings[rnd.IntN(len(hidings))],
			})
			if err == nil && res.Operation.Outcome == relations.Applied {
				s.hidings++
			}
			break
		}
	}
}

// hiddenFacts are the hidden relations that a verification has compared.
func hiddenFacts(r verify.Report) (n int64) {
	for _, t := range r.Totals {
		if t.Hidden {
			n += t.Facts
		}
	}
	return n
}
