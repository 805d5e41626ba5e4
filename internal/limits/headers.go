package limits

import (
	"net/http"
	"strconv"
	"time"
)

// WriteHeaders tells the client how its nearest limit stands, by the names of
// draft-ietf-httpapi-ratelimit-headers-10:
//
//	RateLimit-Policy: "account";q=100;w=20   100 requests at once, and again after 20 s
//	RateLimit: "account";r=17;t=16           17 are left; all 100 in 16 s
func (v Verdict) WriteHeaders(h http.Header) {
	if v.Limit == "" {
		return
	}
	b := v.Quota.bucket()
	text := make([]byte, 0, 64)
	name := func() { text = append(append(append(text[:0], '"'), v.Limit...), '"') }
	name()
	text = strconv.AppendInt(append(text, ";q="...), int64(v.Quota.Burst), 10)
	text = strconv.AppendInt(append(text, ";w="...), seconds(time.Duration(b.full)*time.Microsecond), 10)
	h.Set("RateLimit-Policy", string(text))
	name()
	text = strconv.AppendInt(append(text, ";r="...), v.Left, 10)
	text = strconv.AppendInt(append(text, ";t="...), seconds(v.Full), 10)
	h.Set("RateLimit", string(text))
}

// RetryAfter is the whole seconds after which a refused caller has a token.
func (v Verdict) RetryAfter() time.Duration { return time.Duration(seconds(v.Wait)) * time.Second }

// seconds rounds up: a client that comes earlier is refused again.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
