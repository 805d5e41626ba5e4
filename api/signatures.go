package api

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/signature"
)

// Signatures says how signatures of requests are checked. One that is sent is
// checked whether it is needed or not.
type Signatures struct {
	Verifier signature.Verifier
	Required []string // of signature.Classes
}

type signatures struct {
	Signatures
	results *prometheus.CounterVec
}

func newSignatures(c *Signatures, reg prometheus.Registerer) (*signatures, error) {
	if c == nil {
		return nil, nil
	}
	s := &signatures{*c, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tidemark_api_signatures_total",
		Help: "Signed requests, and those without a signature that is needed, by class and result: ok, or why it was refused.",
	}, []string{"class", "result"})}
	for _, class := range signature.Classes {
		s.results.WithLabelValues(class, "ok")
		for _, reason := range signature.Reasons {
			s.results.WithLabelValues(class, string(reason))
		}
	}
	return s, register(reg, s.results)
}

// checkSignature refuses a request of a class whose signature is not right, or
// that lacks one it needs. The body is read for it and put back.
func (a *API) checkSignature(w http.ResponseWriter, r *http.Request, class string) *Problem {
	if a.signatures == nil || class == "" {
		return nil
	}
	text, p := readBody(w, r)
	if p != nil {
		return p
	}
	r.Body = io.NopCloser(strings.NewReader(text))
	err := a.signatures.Verifier.Verify(r, []byte(text))
	var refusal *signature.Refusal
	switch {
	case err == nil:
		a.signatures.results.WithLabelValues(class, "ok").Inc()
		return nil
	case !errors.As(err, &refusal):
		panic(fmt.Sprintf("a signature is refused with a %T", err))
	case refusal.Reason == signature.Missing && !slices.Contains(a.signatures.Required, class):
		return nil
	}
	a.signatures.results.WithLabelValues(class, string(refusal.Reason)).Inc()
	return badSignature(r, refusal)
}

// badSignature asks for a signature (RFC 9421, 5) of the request as it is.
func badSignature(r *http.Request, refusal *signature.Refusal) *Problem {
	p := newProblem(kindSignatureInvalid, refusal.Error())
	p.Errors = []FieldError{{Location: refusal.Location, Message: refusal.Message}}
	p.challenge = "Signature"
	p.acceptSignature = signature.Wanted(r)
	return p
}

func signatureParams() []*huma.Param {
	text := func(name, description string) *huma.Param {
		return &huma.Param{Name: name, In: "header", Schema: &huma.Schema{Type: huma.TypeString}, Description: description}
	}
	return []*huma.Param{
		text("Content-Digest", "Of a signed request: sha-256 or sha-512 of the body (RFC 9530)"),
		text("Signature-Input", `Of a signed request (RFC 9421): covers @method, @path, content-digest, authorization and idempotency-key, with created, keyid and tag="`+signature.Tag+`"`),
		text("Signature", "Of a signed request: hmac-sha256, where the deployment has signing keys"),
	}
}
