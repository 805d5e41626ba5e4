package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// A batch query of 20 costs a bounded number of allocations, of which none is per
// item: what is read is shared with the body, and what is written goes into one
// buffer. The bound has no room for one more per item.
func TestABatchQueryAllocatesNothingPerItem(t *testing.T) {
	v, err := NewVerifier(AuthConfig{HS256Key: testKey})
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(Config{Verifier: v, Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	RegisterQueries(a, flatStore{}, flatStore{})
	allocations := func(ids int) float64 {
		var b strings.Builder
		for i := range ids {
			fmt.Fprintf(&b, `,"video-%08d"`, i*7919)
		}
		text := `{"videoIds":[` + b.String()[1:] + `]}`
		r := request(t, http.MethodPost, likeBatch, text)
		body := &rewound{text: text}
		r.Body = body
		w := &nowhere{header: http.Header{}}
		return testing.AllocsPerRun(200, func() {
			body.at, w.status = 0, 200
			clear(w.header)
			a.ServeHTTP(w, r)
			if w.status != http.StatusOK {
				t.Fatalf("status %d", w.status)
			}
		})
	}
	one, twenty := allocations(1), allocations(20)
	t.Logf("%v allocations for one, %v for 20", one, twenty)
	if twenty > one+5 || twenty > 40 {
		t.Errorf("20 items took %v allocations, one took %v", twenty, one)
	}
}
