package config

import (
	"strings"
	"testing"
	"time"
)

func TestAccessIsChecked(t *testing.T) {
	for want, set := range map[string]func(*Config){
		"auth.jwks_tls.enabled is true":     func(c *Config) { c.Auth = Auth{JWKSURL: "http://localhost/k", JWKSTLS: TLS{Enabled: true}} },
		"auth.jwks_tls.enabled is false":    func(c *Config) { c.Auth = Auth{JWKSURL: "https://id/k", JWKSTLS: TLS{CAFile: "x"}} },
		"redis_auth.password_file is empty": func(c *Config) { c.Redis, c.RedisAuth.User = "rediss://h:1", "u" },
		"redis_auth and the URL":            func(c *Config) { c.Redis, c.RedisAuth.PasswordFile = "rediss://:p@h:1", "f" },
		"redis_auth.password_file would":    func(c *Config) { c.Redis, c.RedisAuth.PasswordFile = "redis://127.0.0.1:1?addr=h:1", "f" },
		"signatures.key_file is empty":      func(c *Config) { c.Signatures.Required = []string{"like"} },
		"signatures.required \"likes\"":     func(c *Config) { c.Signatures.KeyFile, c.Signatures.Required = "k", []string{"likes"} },
		"signatures.max_age 0s":             func(c *Config) { c.Signatures.MaxAge = 0 },
		"signatures.max_age 2h":             func(c *Config) { c.Signatures.MaxAge = 2 * time.Hour },
	} {
		c := Default()
		set(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if _, err := (Signatures{KeyFile: "/absent.json"}).Keys(nil); err == nil || !strings.Contains(err.Error(), "signatures.key_file") {
		t.Errorf("an absent key file: %v", err)
	}
}
