package drills

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidemark/tidemark/drills/oracle"
)

// The proxy harms commands only, in every way that it has, and what it
// remembers tells operations that were decided twice, answered in two ways, or
// forgotten.
func TestLossyAPI(t *testing.T) {
	var asked atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := asked.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Header.Get("Idempotency-Key") == "two-faced" && n%2 == 0 {
			_, _ = io.WriteString(w, `{"operationResult":{"outcome":"UNCHANGED"}}`)
			return
		}
		_, _ = io.WriteString(w, `{"operationResult":{"outcome":"APPLIED"}}`)
	}))
	defer api.Close()
	p, err := newLossyAPI(api.URL, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	put := func(id, body string) bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+p.address+"/x", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.GetBody = nil
		if id != "" {
			req.Header.Set("Idempotency-Key", id)
		}
		res, err := client.Do(req)
		if err != nil {
			return false
		}
		defer func() { _ = res.Body.Close() }()
		_, err = io.ReadAll(res.Body)
		return err == nil
	}
	if !put("a", `{"clientSequence":1}`) || !put("", "") {
		t.Fatal("the proxy harms what it is not told to")
	}
	p.lose(1)
	heard := 0
	for range 200 {
		if put("b", `{"clientSequence":2}`) {
			heard++
		}
	}
	if !put("", "") {
		t.Error("a query is harmed")
	}
	p.lose(0)
	if kinds := slices.Sorted(maps.Keys(p.lost)); len(kinds) != len(harms) || heard != p.lost["request-double"] {
		t.Errorf("harms %v, %d answers heard", p.lost, heard)
	}
	for range 2 {
		put("two-faced", `{"clientSequence":3}`)
	}
	put("a", `{"clientSequence":4}`)

	found := new(oracle.Findings)
	p.judge(found, map[string]int{"a": 1, "b": 2}, map[uint64][]string{1: {"a"}, 2: {"b", "c"}})
	if got := found.Counts(); got[DecidedTwice] != 2 || got[AnsweredTwo] != 2 || got[Forgotten] != 1 {
		t.Errorf("found %v", got)
	}
}
