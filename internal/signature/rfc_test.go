package signature

import (
	"bufio"
	"encoding/base64"
	"net/http"
	"strings"
	"testing"

	"github.com/dunglas/httpsfv"
)

// rfcRequest is test-request of RFC 9421, B.2.
const rfcRequest = "POST /foo?param=Value&Pet=dog HTTP/1.1\r\n" +
	"Host: example.com\r\n" +
	"Date: Tue, 20 Apr 2021 02:07:55 GMT\r\n" +
	"Content-Type: application/json\r\n" +
	"Content-Digest: sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:\r\n" +
	"Content-Length: 18\r\n\r\n" + rfcBody

const rfcBody = `{"hello": "world"}`

func rfcMessage(t *testing.T) *http.Request {
	t.Helper()
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(rfcRequest)))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func innerList(t *testing.T, text string) httpsfv.InnerList {
	t.Helper()
	d, err := httpsfv.UnmarshalDictionary([]string{"sig=" + text})
	if err != nil {
		t.Fatal(err)
	}
	member, _ := d.Get("sig")
	return member.(httpsfv.InnerList)
}

// RFC 9421, B.2.5: a request signed with hmac-sha256.
func TestRFC9421SharedSecret(t *testing.T) {
	const secret = "uzvJfB4u3N0Jy4T7NZ75MDVcr8zSTInedJtkgcu46YW4XByzNJjxBdtjUkdJPBtbmHhIDi6pcl8jsasjlTMtDQ=="
	const input = `("date" "@authority" "content-type");created=1618884473;keyid="test-shared-secret"`
	const want = `"date": Tue, 20 Apr 2021 02:07:55 GMT
"@authority": example.com
"content-type": application/json
"@signature-params": ` + input
	got, err := base(rfcMessage(t), innerList(t, input))
	if err != nil || got != want {
		t.Fatalf("base is\n%s\nwant\n%s\n%v", got, want, err)
	}
	key, err := base64.StdEncoding.DecodeString(secret)
	if err != nil {
		t.Fatal(err)
	}
	if sum := base64.StdEncoding.EncodeToString(mac(key, got)); sum != "pxcQw6G3AjtMBQjwo8XzkZf/bws5LelbaMk5rGIGtE8=" {
		t.Errorf("signature is %s", sum)
	}
}

// RFC 9421, 2.5: the base of a signature that covers derived components too.
func TestRFC9421Base(t *testing.T) {
	const input = `("@method" "@authority" "@path" "content-digest" "content-length" "content-type");created=1618884473;keyid="test-key-rsa-pss"`
	const want = `"@method": POST
"@authority": example.com
"@path": /foo
"content-digest": sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:
"content-length": 18
"content-type": application/json
"@signature-params": ` + input
	if got, err := base(rfcMessage(t), innerList(t, input)); err != nil || got != want {
		t.Errorf("base is\n%s\nwant\n%s\n%v", got, want, err)
	}
}

// RFC 9421, 2.1 and 2.2: values of components.
func TestRFC9421Components(t *testing.T) {
	const text = "POST /path?param=value&foo=bar&baz=bat%2Dman HTTP/1.1\r\n" +
		"Host: WWW.Example.com:443\r\n" +
		"X-OWS-Header:   Leading and trailing whitespace.   \r\n" +
		"Cache-Control: max-age=60\r\n" +
		"Cache-Control:    must-revalidate\r\n" +
		"X-Empty-Header: \r\n\r\n"
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"@method":        "POST",
		"@authority":     "www.example.com",
		"@path":          "/path",
		"@query":         "?param=value&foo=bar&baz=bat%2Dman",
		"x-ows-header":   "Leading and trailing whitespace.",
		"cache-control":  "max-age=60, must-revalidate",
		"x-empty-header": "",
	} {
		if got, err := component(r, name); err != nil || got != want {
			t.Errorf("%s is %q, want %q: %v", name, got, want, err)
		}
	}
}

// RFC 9530, appendix B and RFC 9421, B.2: digests of the same body.
func TestRFC9530Digests(t *testing.T) {
	if got := digest([]byte(rfcBody)); got != "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:" {
		t.Errorf("Content-Digest is %s", got)
	}
	if err := checkDigest(rfcMessage(t).Header, []byte(rfcBody)); err != nil {
		t.Error(err)
	}
}
