package api

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "rewrite openapi.json from the code")

// generated is the document that the code declares.
func generated(t testing.TB, a *API) []byte {
	t.Helper()
	b, err := json.Marshal(a.huma.OpenAPI())
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		t.Fatal(err)
	}
	out.WriteByte('\n')
	return out.Bytes()
}

func TestOpenAPI(t *testing.T) {
	got := generated(t, newTestAPI(t, &fakeStore{}).api)
	if *update {
		if err := os.WriteFile("openapi.json", got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(got, document) {
		t.Error("openapi.json is not what the code declares: run go test ./api -update and look at the difference")
	}
}
