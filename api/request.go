package api

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// call is what a request carries to its handler besides the request itself.
type call struct {
	identity Identity
	trace    TraceParent
}

type callKey struct{}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	if c == nil {
		return &call{}
	}
	return c
}

// IdentityOf is the identity that the request's token proved; zero outside of
// an authenticated request.
func IdentityOf(ctx context.Context) Identity { return callOf(ctx).identity }

// TraceOf is the caller's trace, if it sent one.
func TraceOf(ctx context.Context) (TraceParent, bool) {
	t := callOf(ctx).trace
	return t, t != TraceParent{}
}

// TraceParent is a W3C traceparent header of version 00.
type TraceParent struct {
	TraceID  string // 32 hex digits
	ParentID string // 16 hex digits
	Flags    string // 2 hex digits
}

// parseTraceParent reads a traceparent; one that is not valid is as none
// (W3C Trace Context: a receiver ignores it).
func parseTraceParent(s string) TraceParent {
	if len(s) != 55 || s[:3] != "00-" || s[35] != '-' || s[52] != '-' {
		return TraceParent{}
	}
	t := TraceParent{TraceID: s[3:35], ParentID: s[36:52], Flags: s[53:]}
	if !isHex(t.TraceID) || !isHex(t.ParentID) || !isHex(t.Flags) || isZeros(t.TraceID) || isZeros(t.ParentID) {
		return TraceParent{}
	}
	return t
}

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func isZeros(s string) bool { return strings.Trim(s, "0") == "" }

// pathID reads an id from the path, percent-decoded.
func pathID(r *http.Request, name string) (string, *Problem) {
	id := r.PathValue(name)
	return id, invalidIf("path."+name, badID(id))
}

// badQuery refuses what begins with a parameter that the operation does not
// have.
func badQuery(raw string) *Problem {
	name, _, _ := strings.Cut(raw, "&")
	name, _, _ = strings.Cut(name, "=")
	return invalid("query."+strings.ToValidUTF8(clip(name), "?"), "is not a parameter here")
}

// queryValues reads the query, in which each of the names may stand once.
func queryValues(raw string, names ...string) (map[string]string, *Problem) {
	values := map[string]string{}
	for raw != "" {
		var pair string
		pair, raw, _ = strings.Cut(raw, "&")
		name, value, _ := strings.Cut(pair, "=")
		if !slices.Contains(names, name) {
			return nil, badQuery(pair)
		}
		if _, twice := values[name]; twice {
			return nil, invalid("query."+name, badTwice)
		}
		value, err := url.QueryUnescape(value)
		if err != nil {
			return nil, invalid("query."+name, "has a percent sign without two hex digits")
		}
		values[name] = value
	}
	return values, nil
}

// idempotencyKey reads the operation id that a command must carry, once.
func idempotencyKey(r *http.Request) (string, *Problem) {
	const location = "header.Idempotency-Key"
	switch values := r.Header.Values("Idempotency-Key"); len(values) {
	case 0:
		return "", invalid(location, "is missing: make one id per command and send it again with every retry")
	case 1:
		return values[0], invalidIf(location, badKey(values[0]))
	default:
		return "", invalid(location, badTwice)
	}
}

// badKey says what is wrong with an operation id, empty when nothing is.
func badKey(key string) string {
	switch {
	case key == "":
		return "is empty"
	case len(key) > MaxKeyBytes:
		return fmt.Sprintf("is longer than %d bytes", MaxKeyBytes)
	}
	for i := range len(key) {
		if key[i] < 0x20 || key[i] > 0x7e {
			return "has a character that is not printable ASCII"
		}
	}
	return ""
}
