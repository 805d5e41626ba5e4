package config

import (
	"strings"
	"testing"
)

func TestKafkaAccess(t *testing.T) {
	if a, err := (Kafka{}).Access(); a != nil || err != nil {
		t.Errorf("off: %v, %v", a, err)
	}
	secret := write(t, "hunter2\n")
	sasl := SASL{Mechanism: "SCRAM-SHA-512", User: "u", PasswordFile: secret}
	a, err := Kafka{TLS: TLS{Enabled: true}, SASL: sasl}.Access()
	if err != nil || a.TLS == nil || a.SASL.User != "u" || a.SASL.Mechanism != "SCRAM-SHA-512" {
		t.Fatalf("on: %+v, %v", a, err)
	}
	if p, err := a.SASL.Password(); p != "hunter2" || err != nil {
		t.Errorf("password %q, %v", p, err)
	}
	for want, k := range map[string]Kafka{
		"kafka.tls.ca_file":           {TLS: TLS{Enabled: true, CAFile: write(t, "no certificate")}},
		"kafka.tls.cert_file":         {TLS: TLS{Enabled: true, CertFile: "absent", KeyFile: "absent"}},
		"kafka.sasl.password_file":    {SASL: SASL{Mechanism: "PLAIN", User: "u", PasswordFile: "absent"}},
		"kafka.sasl.password_file: /": {SASL: SASL{Mechanism: "PLAIN", User: "u", PasswordFile: write(t, " \n")}},
	} {
		if _, err := k.Access(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %s", err, want)
		}
	}
}

// PLAIN may go unencrypted only where nobody reads along.
func TestPlainOnLoopback(t *testing.T) {
	c := Default()
	c.Kafka = Kafka{Brokers: []string{"127.0.0.1:1", "localhost:2", "[::1]:3"}, SASL: SASL{Mechanism: "PLAIN", User: "u", PasswordFile: "f"}}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

func TestListeners(t *testing.T) {
	c := Default()
	api, err := c.API.ServerTLS(nil)
	if api != nil || err != nil || c.API.URL("h:1") != "http://h:1" {
		t.Errorf("off: %v, %v", api, err)
	}
	if server, err := c.Likers.ServerTLS(nil); server != nil || err != nil {
		t.Errorf("off: %v, %v", server, err)
	}
	c.API.TLS = ListenTLS{CertFile: "absent", KeyFile: "absent"}
	if _, err := c.API.ServerTLS(nil); err == nil || !strings.Contains(err.Error(), "api.tls.cert_file") || c.API.URL("h:1") != "https://h:1" {
		t.Errorf("error %v", err)
	}
	cert := write(t, "x")
	c.Ops.TLS = ListenTLS{CertFile: cert, KeyFile: cert, ClientCAFile: "absent"}
	if _, err := c.Ops.ServerTLS(nil); err == nil || !strings.Contains(err.Error(), "ops.tls.client_ca_file") {
		t.Errorf("error %v", err)
	}
}
