package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// An API that is away keeps nothing from being clicked; the next start sends it.
func TestExample(t *testing.T) {
	var away atomic.Bool
	var mu sync.Mutex
	var sent []string
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if away.Load() {
			panic(http.ErrAbortHandler)
		}
		var body struct{ DesiredState string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, r.URL.Path+" "+body.DesiredState)
		_, _ = fmt.Fprintf(w, `{"operationId":%q,"state":%q,"relationVersion":1}`, r.Header.Get("Idempotency-Key"), body.DesiredState) // a client that has gone
	}))
	defer api.Close()
	t.Setenv("TIDEMARK_TOKEN", "token")
	flags := []string{"-url", api.URL, "-journal", filepath.Join(t.TempDir(), "journal")}
	var out strings.Builder
	away.Store(true)
	err := run(t.Context(), append(flags, "-patience", "50ms", "LIKED", "V9001"), &out)
	if err == nil || !strings.Contains(err.Error(), "1 clicks are kept") || out.String() != "V9001 is shown as LIKED\n" {
		t.Errorf("while the API is away: %v, printed %q", err, out.String())
	}
	away.Store(false)
	if err := run(t.Context(), append(flags, "DISLIKED", "V9002"), &out); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(out.String(), "V9002 is DISLIKED, version 1\n") {
		t.Errorf("printed %q", out.String())
	}
	if all := strings.Join(sent, ", "); len(sent) != 2 || !strings.Contains(all, "/v1/videos/V9001/like-relation LIKED") {
		t.Errorf("sent %s", all)
	}
}
