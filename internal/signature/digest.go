package signature

import (
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"net/http"

	"github.com/dunglas/httpsfv"
)

func digest(body []byte) string {
	sum := sha256.Sum256(body)
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

// checkDigest compares Content-Digest (RFC 9530) with the body: each digest of
// an algorithm that is known must be the body's, and one must be there. The weak
// algorithms of the registry are as unknown ones.
func checkDigest(h http.Header, body []byte) error {
	const location = "header.Content-Digest"
	d, err := dictionary(h, "Content-Digest")
	if err != nil {
		return err
	}
	known := 0
	for _, name := range d.Names() {
		var want []byte
		switch name {
		case "sha-256":
			sum := sha256.Sum256(body)
			want = sum[:]
		case "sha-512":
			sum := sha512.Sum512(body)
			want = sum[:]
		default:
			continue
		}
		known++
		member, _ := d.Get(name)
		item, _ := member.(httpsfv.Item)
		got, ok := item.Value.([]byte)
		if !ok {
			return refuse(Malformed, location, "has a digest that is not a byte sequence (:base64:)")
		}
		if subtle.ConstantTimeCompare(got, want) != 1 {
			return refuse(WrongDigest, location, "is not that of the body: make it of the bytes that are sent")
		}
	}
	if known == 0 {
		return refuse(Malformed, location, "has neither sha-256 nor sha-512")
	}
	return nil
}
