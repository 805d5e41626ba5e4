package paging

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/internal/testenv"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(int) { httpClient.CloseIdleConnections() }))
}

const path = "/v1/videos/V1/likers"

// api answers pages of 20 users, each token being the number of users told. Its
// first answer is a refusal. Every answer after it is spoiled.
func api(t *testing.T, spoil func(asked int64, from int, items []map[string]any, next *string) (int, []map[string]any, *string)) Client {
	var asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		size, _ := strconv.Atoi(r.FormValue("pageSize"))
		from, _ := strconv.Atoi(r.FormValue("pageToken"))
		items := []map[string]any{}
		for i := from; i < min(from+size, 20); i++ {
			items = append(items, map[string]any{"userId": fmt.Sprintf("u%d", i), "likedAt": time.Unix(int64(1000-i), 0)})
		}
		var next *string
		if from+size < 20 {
			token := strconv.Itoa(from + size)
			next = &token
		}
		status := http.StatusOK
		if spoil != nil {
			status, items, next = spoil(asked.Load(), from, items, next)
		}
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{"items": items, "nextPageToken": next})
	}))
	t.Cleanup(s.Close)
	return Client{BaseURL: s.URL}
}

// Of every wrong list, and of no right one, something is found.
func TestReaders(t *testing.T) {
	var stable []string
	for i := range 18 { // u18 and u19 come and go
		stable = append(stable, fmt.Sprintf("u%d", i))
	}
	type (
		item  = map[string]any
		items = []map[string]any
	)
	for name, test := range map[string]struct {
		want  oracle.Class
		spoil func(asked int64, from int, i items, next *string) (int, items, *string)
	}{
		"right": {},
		"one who comes and goes": {spoil: func(_ int64, from int, i items, next *string) (int, items, *string) {
			if from == 15 {
				i = i[:4]
			}
			return 200, i, next
		}},
		"empty": {Missing, func(int64, int, items, *string) (int, items, *string) { return 200, nil, nil }},
		"ends early": {Missing, func(_ int64, from int, i items, next *string) (int, items, *string) {
			if from == 10 {
				next = nil
			}
			return 200, i, next
		}},
		"a hole": {Missing, func(_ int64, from int, i items, next *string) (int, items, *string) {
			if from == 5 {
				i[0] = item{"userId": "another", "likedAt": i[0]["likedAt"]}
			}
			return 200, i, next
		}},
		"twice": {Twice, func(_ int64, from int, i items, next *string) (int, items, *string) {
			if from == 5 {
				i[0] = item{"userId": "u4", "likedAt": time.Unix(996, 0)}
			}
			return 200, i, next
		}},
		"another time": {Twice, func(asked int64, from int, i items, next *string) (int, items, *string) {
			if from == 0 {
				i[0]["likedAt"] = time.Unix(2000+asked, 0)
			}
			return 200, i, next
		}},
		"out of order in a page": {Disorder, func(_ int64, _ int, i items, next *string) (int, items, *string) {
			slices.Reverse(i)
			return 200, i, next
		}},
		"out of order over pages": {Disorder, func(_ int64, from int, i items, next *string) (int, items, *string) {
			if from == 0 {
				i[4]["likedAt"] = time.Unix(500, 0)
			}
			return 200, i, next
		}},
		"short": {Short, func(_ int64, from int, i items, next *string) (int, items, *string) {
			if from == 5 {
				i = i[:4]
			}
			return 200, i, next
		}},
		"refused for good":        {Refused, func(int64, int, items, *string) (int, items, *string) { return 410, nil, nil }},
		"503 without Retry-After": {Refused, func(int64, int, items, *string) (int, items, *string) { return 503, nil, nil }},
	} {
		t.Run(name, func(t *testing.T) {
			findings := new(oracle.Findings)
			r := Start(Config{
				Client: api(t, test.spoil), Lists: []List{{path, stable}}, Sizes: []int{5}, Readers: 3, Seed: 1,
				Again: time.Millisecond, Findings: findings,
			})
			defer r.Stop()
			testenv.Eventually(t, 10*time.Second, func() error {
				f := r.Figures()
				if test.want != "" && findings.Counts()[test.want] > 0 {
					return nil
				}
				if test.want == "" && f.Readings >= 10 && f.Refused > 0 && f.Pages >= 40 && f.Entries > 0 {
					return nil
				}
				return fmt.Errorf("%+v, found %v", f, findings.Counts())
			})
			r.Finish(t.Context())
			if test.want == "" && findings.Total() > 0 {
				t.Errorf("found %v", findings.Lines())
			}
		})
	}
}

func TestAll(t *testing.T) {
	c := api(t, nil)
	if err := c.Has(t.Context(), path, 0); err == nil {
		t.Error("a refusal counts as an answer")
	}
	if err := c.Has(t.Context(), path, 20); err != nil {
		t.Error(err)
	}
	if err := c.Has(t.Context(), path, 21); err == nil {
		t.Error("a list has what it has not")
	}
	all, err := c.All(t.Context(), path)
	if err != nil || len(all) != 20 || all[0] != (Entry{"u0", all[0].At}) || !all[0].At.Equal(time.Unix(1000, 0)) {
		t.Errorf("%d entries, %+v, %v", len(all), all[:1], err)
	}
	c = api(t, func(int64, int, []map[string]any, *string) (int, []map[string]any, *string) { return 500, nil, nil })
	if all, err := c.All(t.Context(), path); err == nil {
		t.Errorf("an error counts as a list: %+v", all)
	}
}
