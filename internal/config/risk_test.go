package config

import (
	"strings"
	"testing"
	"time"
)

func TestRiskIsChecked(t *testing.T) {
	for want, set := range map[string]func(*RiskService){
		"risk.service.url is neither https":               func(s *RiskService) { s.URL = "http://risk.example/v1" },
		"or names a user":                                 func(s *RiskService) { s.URL = "https://u:hunter2@risk.example/v1" },
		"risk.service.tls.enabled is true":                func(s *RiskService) { s.URL, s.TLS.Enabled = "http://127.0.0.1/v1", true },
		"risk.service.tls.enabled is false":               func(s *RiskService) { s.TLS.CAFile = "x" },
		"risk.service.secret and":                         func(s *RiskService) { s.Secret, s.SecretFile = "hunter2", "f" },
		`risk.service.ask "never"`:                        func(s *RiskService) { s.Ask = "never" },
		"risk.service.timeout is 3s":                      func(s *RiskService) { s.Timeout = 3 * time.Second },
		"risk.service.in_flight is 0":                     func(s *RiskService) { s.InFlight = 0 },
		`risk.service.unavailable "" is not one of allow`: func(s *RiskService) { s.Unavailable = "" },
	} {
		c := Default()
		set(&c.Risk.Service)
		err := c.Validate()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the secret is in %v", err)
		}
	}
	c := Default()
	c.Risk.Service.URL, c.Risk.Service.SecretFile = "https://risk.example/v1/verdicts", "f"
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}
