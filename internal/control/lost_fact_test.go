package control

import (
	"slices"
	"testing"

	"github.com/tidemark/tidemark/internal/idset"
)

func TestLostFactsAreKeptByEvent(t *testing.T) {
	db := openEmpty(t)
	older := LostFact{OutboxID: 7, EventID: "e7", Relation: "like:u:V", Version: 2}
	newer := LostFact{OutboxID: 9, EventID: "e9", Relation: "like:u:V", Version: 3}
	other := LostFact{OutboxID: 8, EventID: "e8", Relation: "like:a:V", Version: 1}
	far := LostFact{OutboxID: 70, EventID: "e70", Relation: "like:b:V", Version: 1}
	for range 2 {
		if err := db.AddLostFacts(t.Context(), 1, []LostFact{older, newer, other, far}); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.AddLostFacts(t.Context(), 0, nil); err != nil {
		t.Fatal(err)
	}
	got, err := db.LostFacts(t.Context(), 1, idset.Of(7, 8, 9))
	if err != nil || !slices.Equal(got, []LostFact{other, newer, older}) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := db.LostFacts(t.Context(), 0, idset.Of(7)); err != nil || len(got) != 0 {
		t.Errorf("of another shard: %+v, %v", got, err)
	}
}
