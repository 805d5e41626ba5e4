package signature

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark/tidemark/internal/filestamp"
)

// Limits of a key file.
const (
	maxFileBytes = 1 << 20
	maxKeys      = 4096
)

// lookEvery is the least time between two looks at whether the file has
// changed: a key that is taken out of it is good for so long.
const lookEvery = time.Second

// KeyFile are the keys of a file, read again when it changes. The file is a JWK
// set (RFC 7517) of symmetric keys: kty "oct", kid, and the secret in k. Several
// keys are good at a time, so that a client goes from one to the next.
type KeyFile struct {
	path string
	log  *slog.Logger
	now  func() time.Time
	keys atomic.Pointer[map[string][]byte]

	look   sync.Mutex // whoever holds it looks at the file; nobody waits for it
	looked time.Time
	stamp  string // of the file that keys is of
	said   string // the last failure that was logged
}

// OpenKeys reads a key file once, to say now what is wrong with it.
func OpenKeys(path string, log *slog.Logger) (*KeyFile, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	f := &KeyFile{path: path, log: log, now: time.Now}
	f.looked = f.now()
	return f, f.read()
}

// Secret is that of a key, nil if the file has none of this id.
func (f *KeyFile) Secret(keyID string) []byte {
	f.renew()
	return (*f.keys.Load())[keyID]
}

// renew reads the file again if it has changed. One that cannot be used leaves
// the last good keys in use.
func (f *KeyFile) renew() {
	if !f.look.TryLock() {
		return
	}
	defer f.look.Unlock()
	now := f.now()
	if now.Sub(f.looked) < lookEvery {
		return
	}
	f.looked = now
	err := f.read()
	switch {
	case err == nil:
		f.said = ""
	case err.Error() != f.said:
		f.said = err.Error()
		f.log.Warn("signing keys cannot be read again; those read before stay in use", "error", err)
	}
}

// read does nothing while the file is the one that keys is of.
func (f *KeyFile) read() error {
	stamp, err := filestamp.Of(f.path)
	if err == nil && stamp == f.stamp {
		return nil
	}
	var b []byte
	if err == nil {
		b, err = filestamp.ReadAtMost(f.path, maxFileBytes)
	}
	if err != nil {
		return fmt.Errorf("reading signing keys: %w", err)
	}
	keys, err := parseKeys(b)
	if err != nil {
		return fmt.Errorf("reading signing keys: %s: %w", f.path, err)
	}
	f.keys.Store(&keys)
	f.stamp = stamp
	return nil
}

// parseKeys never repeats what is in the file but for ids of keys.
func parseKeys(b []byte) (map[string][]byte, error) {
	var set struct {
		Keys []struct{ Kty, Kid, K, Alg string }
	}
	if json.Unmarshal(b, &set) != nil {
		return nil, errors.New(`is not a JWK set: {"keys":[{"kty":"oct","kid":"ID","k":"BASE64URL"}]}`)
	}
	if len(set.Keys) == 0 || len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("has %d keys, not 1 to %d", len(set.Keys), maxKeys)
	}
	keys := make(map[string][]byte, len(set.Keys))
	for i, k := range set.Keys {
		if k.Kty != "oct" || k.Alg != "" && k.Alg != "HS256" {
			return nil, fmt.Errorf(`key %d is not of kty "oct", or of an alg other than "HS256"`, i)
		}
		secret, err := base64.RawURLEncoding.DecodeString(k.K)
		if err != nil {
			return nil, fmt.Errorf("key %d has a k that is not base64url without padding", i)
		}
		if err := (Key{k.Kid, secret}).Check(); err != nil {
			return nil, fmt.Errorf("key %d: %w", i, err)
		}
		if _, twice := keys[k.Kid]; twice {
			return nil, fmt.Errorf("two keys have the kid %q", k.Kid)
		}
		keys[k.Kid] = secret
	}
	return keys, nil
}
