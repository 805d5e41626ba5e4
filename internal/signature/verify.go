package signature

import (
	"crypto/hmac"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"
)

// Reason is why a signature is refused; metrics have it.
type Reason string

// The reasons.
const (
	Missing     Reason = "missing"      // no signature with our tag
	Malformed   Reason = "malformed"    // a field is not as its RFC says, or has what is not read here
	Incomplete  Reason = "incomplete"   // it does not cover what it must
	UnknownKey  Reason = "unknown-key"  // its keyid is none of ours
	OutsideTime Reason = "outside-time" // older than it may be, expired, or from the future
	WrongDigest Reason = "wrong-digest" // Content-Digest is not the body's
	NotOurs     Reason = "wrong"        // not made with the key over this request
)

// Reasons are all of them.
var Reasons = []Reason{Missing, Malformed, Incomplete, UnknownKey, OutsideTime, WrongDigest, NotOurs}

// Refusal is an error that says why a signature does not count and what to do.
// It holds nothing of keys, and of the request only names of fields.
type Refusal struct {
	Reason   Reason
	Location string // the field at fault: header.Signature-Input
	Message  string // reads after the location
}

// Error makes a Refusal an error.
func (r *Refusal) Error() string { return r.Location + " " + r.Message }

func refuse(reason Reason, location, message string) error {
	return &Refusal{reason, location, message}
}

// Skew is how far a client's clock may be ahead of this one.
const Skew = 30 * time.Second

// Verifier checks signatures.
type Verifier struct {
	// Secret is that of a key, nil if there is none of this id.
	Secret func(keyID string) []byte
	// MaxAge of a signature by its parameter created; a request that was
	// recorded is of no use after it.
	MaxAge time.Duration
	Now    func() time.Time
}

// Verify checks r's signature, with body the body that was read. The error is a
// *Refusal. Whether a request without a signature is refused is the caller's
// choice: the reason is Missing.
func (v Verifier) Verify(r *http.Request, body []byte) error {
	if r.Header.Values("Signature-Input") == nil {
		return refuse(Missing, "header.Signature-Input", `is missing: sign the request (RFC 9421) with tag="`+Tag+`"`)
	}
	input, sum, err := find(r.Header)
	if err != nil {
		return err
	}
	if err := checkCovered(r, input); err != nil {
		return err
	}
	keyID, err := v.checkParams(input.Params)
	if err != nil {
		return err
	}
	text, err := base(r, input)
	if err != nil {
		return err
	}
	secret := v.Secret(keyID)
	if secret == nil {
		return refuse(UnknownKey, "header.Signature-Input", "has a keyid that is not known here: it may have been replaced")
	}
	if !hmac.Equal(sum, mac(secret, text)) {
		return refuse(NotOurs, "header.Signature", "is not that of this request with this key: sign what is sent, unchanged by what is between")
	}
	return checkDigest(r.Header, body)
}

// find gives the one signature that has our tag.
func find(h http.Header) (input httpsfv.InnerList, sum []byte, err error) {
	inputs, err := dictionary(h, "Signature-Input")
	if err != nil {
		return input, nil, err
	}
	found := ""
	for _, name := range inputs.Names() {
		member, _ := inputs.Get(name)
		list, ok := member.(httpsfv.InnerList)
		if !ok {
			continue
		}
		if tag, _ := list.Params.Get("tag"); tag != Tag {
			continue
		}
		if found != "" {
			return input, nil, refuse(Malformed, "header.Signature-Input", `has two signatures with tag="`+Tag+`"`)
		}
		found, input = name, list
	}
	if found == "" {
		return input, nil, refuse(Missing, "header.Signature-Input", `has no signature with tag="`+Tag+`"`)
	}
	signatures, err := dictionary(h, "Signature")
	if err != nil {
		return input, nil, err
	}
	member, _ := signatures.Get(found)
	item, _ := member.(httpsfv.Item)
	sum, ok := item.Value.([]byte)
	if !ok {
		return input, nil, refuse(Malformed, "header.Signature", "has no byte sequence (:base64:) under the label of Signature-Input")
	}
	return input, sum, nil
}

// dictionary reads a field as RFC 9651 has it.
func dictionary(h http.Header, field string) (*httpsfv.Dictionary, error) {
	values, size := h.Values(field), 0
	for _, v := range values {
		size += len(v)
	}
	if size > maxHeaderBytes {
		return nil, refuse(Malformed, "header."+field, fmt.Sprintf("is longer than %d bytes", maxHeaderBytes))
	}
	if len(values) == 0 {
		return nil, refuse(Malformed, "header."+field, "is missing")
	}
	d, err := httpsfv.UnmarshalDictionary(values)
	if err != nil {
		return nil, refuse(Malformed, "header."+field, "is not a dictionary (RFC 9651)")
	}
	return d, nil
}

// checkCovered: what is not covered could be changed on the way.
func checkCovered(r *http.Request, input httpsfv.InnerList) error {
	if len(input.Items) > maxComponents {
		return refuse(Malformed, "header.Signature-Input", fmt.Sprintf("covers more than %d components", maxComponents))
	}
	var lacks []string
	for _, name := range mustCover(r) {
		if !slices.ContainsFunc(input.Items, func(i httpsfv.Item) bool { return i.Value == name }) {
			lacks = append(lacks, name)
		}
	}
	if lacks != nil {
		return refuse(Incomplete, "header.Signature-Input", "does not cover "+strings.Join(lacks, ", "))
	}
	return nil
}

func mustCover(r *http.Request) []string {
	must := slices.Clone(covered)
	if r.Header.Values(keyed) != nil {
		must = append(must, keyed)
	}
	if r.URL.RawQuery != "" {
		must = append(must, "@query")
	}
	return must
}

// Wanted asks for a signature of r: the field Accept-Signature (RFC 9421, 5.1).
func Wanted(r *http.Request) string {
	return label + `=("` + strings.Join(mustCover(r), `" "`) + `");created;keyid;alg="` + Algorithm + `";tag="` + Tag + `"`
}

// checkParams checks what the signature says of itself; none of it is believed
// before the signature is found right, but old ones need no more work.
func (v Verifier) checkParams(p *httpsfv.Params) (keyID string, err error) {
	const location = "header.Signature-Input"
	keyID, ok := text(p, "keyid")
	if !ok || badKeyID(keyID) != "" {
		return "", refuse(Malformed, location, fmt.Sprintf("has no keyid of 1 to %d bytes", MaxKeyIDBytes))
	}
	if alg, there := p.Get("alg"); there && alg != Algorithm {
		return "", refuse(Malformed, location, "has an alg other than "+Algorithm)
	}
	created, ok := seconds(p, "created")
	if !ok {
		return "", refuse(Malformed, location, "has no time of its making (created, in seconds since 1970)")
	}
	now := v.Now().Truncate(time.Second) // what created is told in
	if ahead := created.Sub(now); ahead > Skew {
		return "", refuse(OutsideTime, location, "is from the future (created): set the clock by header Date of this answer")
	}
	if age := now.Sub(created); age > v.MaxAge {
		return "", refuse(OutsideTime, location, fmt.Sprintf("is older than %v (created): sign each attempt anew, and set the clock by header Date of this answer", v.MaxAge))
	}
	if _, there := p.Get("expires"); there {
		expires, ok := seconds(p, "expires")
		if !ok {
			return "", refuse(Malformed, location, "has an expires that is not a number of seconds since 1970")
		}
		if now.Sub(expires) > Skew {
			return "", refuse(OutsideTime, location, "has expired (expires): sign each attempt anew")
		}
	}
	return keyID, nil
}

func text(p *httpsfv.Params, name string) (string, bool) {
	v, _ := p.Get(name)
	s, ok := v.(string)
	return s, ok
}

// seconds are at most 15 digits (RFC 9651, 3.3.1), which no duration of
// time.Time.Sub overflows wrongly: it saturates.
func seconds(p *httpsfv.Params, name string) (time.Time, bool) {
	v, _ := p.Get(name)
	n, ok := v.(int64)
	return time.Unix(n, 0), ok
}
