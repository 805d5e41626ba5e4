package api

import (
	"crypto/sha256"
	"sync"
	"time"
)

// maxProven bounds each half of a tokenCache, about 10 MB.
const maxProven = 32 << 10

// tokenCache remembers proven tokens. Two halves bound it: when the younger is
// full the older is dropped, so what is used stays and memory does not grow
// with what clients send. Only tokens with a good signature come in.
type tokenCache struct {
	mu           sync.Mutex
	young, older map[[sha256.Size]byte]provenToken
}

type provenToken struct {
	identity Identity
	epoch    uint64 // of the keys
}

func tokenKey(token string) [sha256.Size]byte { return sha256.Sum256([]byte(token)) }

// get finds an identity that was proven under the same keys and has not
// expired.
func (c *tokenCache) get(key [sha256.Size]byte, epoch uint64, now time.Time) (Identity, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, ok := c.young[key]
	if !ok {
		if t, ok = c.older[key]; !ok {
			return Identity{}, false
		}
		c.add(key, t)
	}
	return t.identity, t.epoch == epoch && now.Before(t.identity.Expires)
}

func (c *tokenCache) put(key [sha256.Size]byte, epoch uint64, id Identity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(key, provenToken{id, epoch})
}

func (c *tokenCache) add(key [sha256.Size]byte, t provenToken) {
	if c.young == nil || len(c.young) >= maxProven {
		c.older, c.young = c.young, make(map[[sha256.Size]byte]provenToken)
	}
	c.young[key] = t
}
