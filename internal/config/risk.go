package config

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tidemark/tidemark/internal/tlsfiles"
)

// Risk decides, before their transaction, on commands that would begin a relation
// (docs/risk.md).
type Risk struct {
	// RulesFile is a rule file, read again when it or a list of ids that it names
	// changes. Empty: there are no rules.
	RulesFile string      `koanf:"rules_file"`
	Service   RiskService `koanf:"service"`
}

// RiskService is asked over HTTP about what no rule decided.
type RiskService struct {
	// URL that questions are posted to; https, or http on loopback. Empty: there
	// is no service.
	URL string `koanf:"url"`
	TLS TLS    `koanf:"tls"`
	// Secret is sent as bearer token; empty: SecretFile's content, or none.
	Secret string `koanf:"secret"`
	// SecretFile holds it, and is read again when it changes.
	SecretFile string `koanf:"secret_file"`
	// Ask is AskUndecided or AskAlways.
	Ask string `koanf:"ask"`
	// Timeout of a question, with the wait for its turn, 1ms..2s.
	Timeout time.Duration `koanf:"timeout"`
	// InFlight are the questions that a process asks at a time, 1..10000.
	InFlight int `koanf:"in_flight"`
	// Unavailable is what commands get without an answer: AllowCommand,
	// HideRelation or RefuseCommand.
	Unavailable string `koanf:"unavailable"`
}

// Values of RiskService.Ask.
const (
	AskUndecided = "undecided" // about what no rule decided
	AskAlways    = "always"    // about everything; the stricter verdict stands
)

// HideRelation is a value of RiskService.Unavailable: the fact is kept, and not
// counted.
const HideRelation = "hide"

func defaultRisk() Risk {
	return Risk{Service: RiskService{Ask: AskUndecided, Timeout: 100 * time.Millisecond, InFlight: 64, Unavailable: AllowCommand}}
}

func (r Risk) validate(p *problems) {
	s := r.Service
	s.TLS.validate(p, "risk.service.tls")
	oneOf := func(path, v string, of ...string) {
		if !slices.Contains(of, v) {
			p.add(path, "%q is not one of %s", v, strings.Join(of, ", "))
		}
	}
	oneOf("risk.service.ask", s.Ask, AskUndecided, AskAlways)
	oneOf("risk.service.unavailable", s.Unavailable, AllowCommand, HideRelation, RefuseCommand)
	if s.Timeout < time.Millisecond || s.Timeout > 2*time.Second {
		p.add("risk.service.timeout", "is %v, not in 1ms..2s", s.Timeout)
	}
	if s.InFlight < 1 || s.InFlight > 10_000 {
		p.add("risk.service.in_flight", "is %d, not in 1..10000", s.InFlight)
	}
	if s.Secret != "" && s.SecretFile != "" {
		p.add("risk.service.secret", "and risk.service.secret_file are both given: keep one")
	}
	if s.URL == "" {
		return
	}
	if u, err := url.Parse(s.URL); err != nil || u.User != nil || !safeURL(s.URL) {
		p.add("risk.service.url", "is neither https nor http on loopback, or names a user: give the secret in secret_file")
	} else if s.TLS.Enabled && u.Scheme != "https" {
		p.add("risk.service.tls.enabled", "is true, but risk.service.url is not an https URL")
	}
}

// Client is how an https service is reached; nil: with the system's authorities.
func (s RiskService) Client() (*tlsfiles.Client, error) { return s.TLS.client("risk.service.tls") }
