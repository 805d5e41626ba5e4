// Package signature signs requests and checks their signatures: HTTP Message
// Signatures (RFC 9421) of one algorithm, hmac-sha256, over components that
// name the request whole: its method, path, body (by Content-Digest, RFC 9530),
// token (which says for whom it is) and Idempotency-Key.
//
// A signature says that who sent a request has the key of a client, and when it
// was made. It says nothing of order: the version of a relation does that. Sent
// again within its time, a request is what its Idempotency-Key makes of it.
//
// Of RFC 9421 this has what a request to this API needs: fields without
// parameters, and the derived components @method, @authority, @path and @query.
// @scheme and @target-uri are not among them, since a proxy in front that ends
// TLS would change them. A request may bear signatures of others beside: only
// the one with tag Tag is looked at.
package signature

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
)

// Tag of the signatures that are looked at (RFC 9421, 2.3).
const Tag = "tidemark"

// Algorithm of all signatures.
const Algorithm = "hmac-sha256"

// Classes of requests for which a deployment may want a signature: those that
// change something.
var Classes = []string{"like", "favorite", "follow", "privacy-events", "exports"}

// Limits of what is read.
const (
	MaxKeyIDBytes  = 128
	minSecretBytes = 32 // as long as the hash
	maxHeaderBytes = 4 << 10
	maxComponents  = 32
)

// Key is the secret that a client and the API share.
type Key struct {
	ID     string // 1 to MaxKeyIDBytes of printable ASCII
	Secret []byte // at least 32 bytes
}

// Check says what is wrong with the key, without its secret.
func (k Key) Check() error {
	if bad := badKeyID(k.ID); bad != "" {
		return fmt.Errorf("the id of a signing key %s", bad)
	}
	if len(k.Secret) < minSecretBytes {
		return fmt.Errorf("signing key %q has %d bytes, fewer than %d", k.ID, len(k.Secret), minSecretBytes)
	}
	return nil
}

func badKeyID(id string) string {
	if id == "" || len(id) > MaxKeyIDBytes {
		return fmt.Sprintf("has not 1 to %d bytes", MaxKeyIDBytes)
	}
	for i := range len(id) {
		if id[i] < 0x20 || id[i] > 0x7e {
			return "has a character that is not printable ASCII"
		}
	}
	return ""
}

func mac(secret []byte, base string) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(base))
	return h.Sum(nil)
}
