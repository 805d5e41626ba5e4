package signature

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func keySet(keys ...Key) string {
	var all []string
	for _, k := range keys {
		all = append(all, fmt.Sprintf(`{"kty":"oct","kid":%q,"k":%q}`, k.ID, base64.RawURLEncoding.EncodeToString(k.Secret)))
	}
	return `{"keys":[` + strings.Join(all, ",") + `]}`
}

func writeKeys(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Keys come and go without a restart; a file that cannot be used leaves the
// last good keys in use, and is told once.
func TestKeysAreRenewed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "signing-keys.json")
	next := Key{"app-2", bytes.Repeat([]byte("t"), 40)}
	writeKeys(t, path, keySet(testKey))
	var log bytes.Buffer
	f, err := OpenKeys(path, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	now := f.looked
	f.now = func() time.Time { return now }
	has := func(step string, keys ...Key) {
		t.Helper()
		now = now.Add(lookEvery)
		for _, k := range []Key{testKey, next} {
			want := []byte(nil)
			for _, there := range keys {
				if there.ID == k.ID {
					want = k.Secret
				}
			}
			if got := f.Secret(k.ID); !bytes.Equal(got, want) {
				t.Errorf("%s: key %s is %q", step, k.ID, got)
			}
		}
	}
	has("at first", testKey)
	writeKeys(t, path, keySet(testKey, next))
	has("both", testKey, next)
	writeKeys(t, path, `{"keys":[`)
	has("half-written", testKey, next)
	has("half-written still", testKey, next)
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings of one failure:\n%s", n, &log)
	}
	writeKeys(t, path, keySet(next))
	has("the first is gone", next)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	has("the file is gone", next)
}

func TestBadKeyFiles(t *testing.T) {
	secret := base64.RawURLEncoding.EncodeToString(testKey.Secret)
	for text, want := range map[string]string{
		``:              "not a JWK set",
		`{"keys":[]}`:   "0 keys",
		`{"keys":[{}]}`: `kty "oct"`,
		`{"keys":[{"kty":"oct","kid":"a","alg":"HS512","k":"` + secret + `"}]}`: `"HS256"`,
		`{"keys":[{"kty":"oct","kid":"a","k":"*"}]}`:                            "base64url",
		`{"keys":[{"kty":"oct","kid":"a","k":"c2hvcnQ"}]}`:                      "fewer than 32",
		`{"keys":[{"kty":"oct","kid":"","k":"` + secret + `"}]}`:                "id of a signing key",
		keySet(testKey, testKey):                                                "two keys",
		strings.Repeat(" ", maxFileBytes+1):                                     "more than",
	} {
		path := filepath.Join(t.TempDir(), "keys.json")
		writeKeys(t, path, text)
		_, err := OpenKeys(path, nil)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%.80s: error %v, want %q and the path", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("the error has the secret: %v", err)
		}
	}
}
