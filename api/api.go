package api

import (
	_ "embed"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/limits"
	"github.com/tidemark/tidemark/internal/overload"
)

// document is the committed OpenAPI document. It covers commands and queries,
// whichever of them a process serves, and equals what the code declares
// (TestOpenAPI).
//
//go:embed openapi.json
var document []byte

// Config of an API.
type Config struct {
	// Verifier proves the tokens of all requests under /v1/. Required; its Run
	// is the caller's to run.
	Verifier *Verifier
	// Visibility decides which targets take new relations, and whose counts are
	// shown; nil: all.
	Visibility Visibility
	// Risk decides on commands that would begin a relation; nil: all go on.
	Risk *Risk
	// RequestTimeout bounds the work on one request; default 5s.
	RequestTimeout time.Duration
	// Signatures are checked where they are sent, and needed where Signatures says
	// so; nil: nobody looks at them.
	Signatures *Signatures
	// Limiter bounds what one client may ask for; nil: nothing does.
	Limiter *limits.Limiter
	// Guard bounds what is being served; nil: nothing does. Shard is where a user's
	// relations are, for it.
	Guard      *overload.Guard
	Shard      func(user string) int
	Logger     *slog.Logger          // default: discard
	Registerer prometheus.Registerer // default: none
}

// API is an http.Handler with the operations that were registered on it.
type API struct {
	router         *router
	huma           huma.API
	verifier       *Verifier
	visibility     Visibility // nil: everything is there for everybody
	risk           *Risk      // nil: all go on
	measures       *measures
	log            *slog.Logger
	quiet          quietLog
	requestTimeout time.Duration
	signatures     *signatures     // nil: nobody looks at them
	limiter        *limits.Limiter // nil: none
	guard          *overload.Guard // nil: none
	shard          func(user string) int
}

// New makes an API that has /openapi.json and nothing else yet.
func New(c Config) (*API, error) {
	if c.Verifier == nil {
		return nil, errors.New("api: no verifier is set, so no identity could be proven: set one")
	}
	if c.RequestTimeout <= 0 {
		c.RequestTimeout = 5 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	m, err := newMeasures(c.Registerer)
	if err != nil {
		return nil, err
	}
	a := &API{
		router: &router{}, verifier: c.Verifier, visibility: c.Visibility, risk: c.Risk, measures: m, requestTimeout: c.RequestTimeout, limiter: c.Limiter, guard: c.Guard, shard: c.Shard,
		log: c.Logger.With("component", "api"),
	}
	a.quiet.log = a.log
	if a.signatures, err = newSignatures(c.Signatures, c.Registerer); err != nil {
		return nil, err
	}
	a.huma = huma.NewAPI(humaConfig(), a.router)
	a.router.add(http.MethodGet, "/openapi.json", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "" {
			badQuery(r.URL.RawQuery).write(w)
			return
		}
		w.Header().Set("Content-Type", "application/openapi+json;version=3.1")
		_, _ = w.Write(document)
	})
	return a, nil
}

// humaConfig has no pages and no paths of huma's own: its documentation page
// loads scripts from elsewhere, and /openapi.json is the committed document.
func humaConfig() huma.Config {
	c := huma.Config{OpenAPI: &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title:   "tidemark",
			Version: "1",
			Description: "Relations (like, favorite, follow) as committed facts, and counts that say what they include.\n\n" +
				"Commands set an absolute state and are idempotent by Idempotency-Key. Every refusal is a problem (RFC 9457) with a stable type.",
		},
		Components: &huma.Components{
			Schemas: huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer),
			SecuritySchemes: map[string]*huma.SecurityScheme{
				bearerScheme: {Type: "http", Scheme: "bearer", BearerFormat: "JWT", Description: "JWT with the claims sub (the user) and exp; roles grants more."},
			},
		},
	}}
	c.AllowAdditionalPropertiesByDefault = true
	return c
}
