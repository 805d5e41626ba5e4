package signature

import (
	"testing"
)

// No fields that a client may send panic, are refused with anything but a
// reason, or are taken for a signature that the key did not make: with another
// key, none is.
func FuzzVerify(f *testing.F) {
	r := signed(f, testNow)
	f.Add(r.Header.Get("Signature-Input"), r.Header.Get("Signature"), r.Header.Get("Content-Digest"))
	for _, text := range []string{
		"", "tidemark", "tidemark=()", `tidemark=();tag="tidemark"`, `a=("a";sf);tag="tidemark"`, `a=("@path" 1 :AA: ?1 @1 tok 1.5 %"a");created=1.0;tag="tidemark"`,
		`a=("@method" "@path" "content-digest" "authorization" "idempotency-key");created=1790000000;keyid="other";tag="tidemark"`,
	} {
		f.Add(text, "tidemark=:AAAA:", "sha-256=:AAAA:")
		f.Add(text, text, text)
	}
	known := map[Reason]bool{}
	for _, reason := range Reasons {
		known[reason] = true
	}
	v := verifier()
	other := v
	other.Secret = func(string) []byte { return make([]byte, 32) }
	f.Fuzz(func(t *testing.T, input, sum, contentDigest string) {
		r := unsigned()
		for field, text := range map[string]string{"Signature-Input": input, "Signature": sum, "Content-Digest": contentDigest} {
			if text != "" {
				r.Header.Set(field, text)
			}
		}
		if got := reasonOf(t, v.Verify(r, testBody)); got != "" && !known[got] {
			t.Fatalf("reason %q", got)
		}
		if other.Verify(r, testBody) == nil {
			t.Fatalf("taken without the key: %q %q %q", input, sum, contentDigest)
		}
	})
}
