package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"sync"
)

var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// readBody reads a JSON request body of at most MaxBodyBytes.
func readBody(w http.ResponseWriter, r *http.Request) (string, *Problem) {
	if p := checkMediaType(r.Header); p != nil {
		return "", p
	}
	if r.ContentLength > MaxBodyBytes {
		return "", tooLarge()
	}
	buf := bodies.Get().(*bytes.Buffer)
	defer bodies.Put(buf)
	buf.Reset()
	if _, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, MaxBodyBytes)); err != nil {
		return "", bodyProblem(err)
	}
	return buf.String(), nil
}

func tooLarge() *Problem {
	p := newProblem(kindBodyTooLarge, fmt.Sprintf("body is larger than %d bytes", MaxBodyBytes))
	p.Errors = []FieldError{{Location: "body", Message: fmt.Sprintf("is larger than %d bytes", MaxBodyBytes)}}
	return p
}

func bodyProblem(err error) *Problem {
	var large *http.MaxBytesError
	var slow net.Error
	switch {
	case errors.As(err, &large):
		return tooLarge()
	case errors.As(err, &slow) && slow.Timeout():
		return newProblem(kindRequestTimeout, "body did not arrive in time: send it again")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return invalid("body", "ends early")
	default:
		return invalid("body", "cannot be read: its transfer encoding is broken")
	}
}

// checkMediaType accepts application/json in UTF-8, plain; also a request that
// names no type, for which JSON is the only guess.
func checkMediaType(h http.Header) *Problem {
	if encoding := h.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return unsupported("header.Content-Encoding", "is not supported: send the body as it is")
	}
	ct := h.Get("Content-Type")
	if ct == "" || ct == "application/json" {
		return nil
	}
	media, params, err := mime.ParseMediaType(ct)
	if err != nil || media != "application/json" {
		return unsupported("header.Content-Type", "is not application/json")
	}
	if charset, ok := params["charset"]; ok && !strings.EqualFold(charset, "utf-8") {
		return unsupported("header.Content-Type", "names a charset other than UTF-8")
	}
	return nil
}

func unsupported(location, message string) *Problem {
	p := newProblem(kindUnsupportedMedia, location+" "+message)
	p.Errors = []FieldError{{Location: location, Message: message}}
	return p
}
