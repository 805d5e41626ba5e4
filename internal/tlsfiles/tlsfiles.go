// Package tlsfiles makes TLS of PEM files that are renewed while a process
// runs: each handshake has what the files hold then. Files that cannot be used
// at that moment, such as half-written ones, leave the last good ones in use.
//
// Client dials; it checks the server's certificate, its dates and its name
// always. ServerConfig listens.
package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/tidemark/tidemark/internal/filestamp"
)

// minVersion of every connection: below it there are ciphers that are broken.
const minVersion = tls.VersionTLS12

// Files are PEM files by name.
type Files struct {
	// Setting is the path of the settings that name the files, such as
	// kafka.tls: errors say it.
	Setting string
	// CA has the authorities that the other side's certificate is checked with;
	// CASetting is the last part of its setting's path, default ca_file.
	CA, CASetting string
	// Cert and Key show who this side is; both or neither.
	Cert, Key string
}

// material is what the files held at one time.
type material struct {
	authorities *x509.CertPool   // nil: no file
	pair        *tls.Certificate // nil: no files
}

// source reads files again when they have changed. It is safe for concurrent
// use.
type source struct {
	files Files

	mu    sync.Mutex
	stamp string // of the files that good was read from
	good  *material
}

// newSource reads the files at once, so that a wrong one is known at the start.
func newSource(f Files) (*source, error) {
	s := &source{files: f}
	_, err := s.current()
	if err != nil {
		return nil, err
	}
	return s, nil
}

// current is what the files hold. With an error and a material, the files
// cannot be used now, and the material is the last good one.
//
// The stamp is taken before the files are read: one that changes in between has
// a newer stamp, and is read again by the next handshake.
func (s *source) current() (*material, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stamp, err := s.stampNow()
	if err == nil && s.good != nil && stamp == s.stamp {
		return s.good, nil
	}
	var m *material
	if err == nil {
		m, err = s.files.read()
	}
	if err != nil {
		return s.good, err
	}
	s.good, s.stamp = m, stamp
	return m, nil
}

// stampNow is the stamp of all the files.
func (s *source) stampNow() (string, error) {
	var b strings.Builder
	for _, f := range []struct{ setting, name string }{{s.files.caSetting(), s.files.CA}, {"cert_file", s.files.Cert}, {"key_file", s.files.Key}} {
		if f.name == "" {
			continue
		}
		stamp, err := filestamp.Of(f.name)
		if err != nil {
			return "", fmt.Errorf("reading %s.%s: %w", s.files.Setting, f.setting, err)
		}
		fmt.Fprintln(&b, f.name, stamp)
	}
	return b.String(), nil
}

func (f Files) caSetting() string {
	if f.CASetting != "" {
		return f.CASetting
	}
	return "ca_file"
}

func (f Files) read() (*material, error) {
	m := &material{}
	if f.CA != "" {
		pem, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("reading %s.%s: %w", f.Setting, f.caSetting(), err)
		}
		m.authorities = x509.NewCertPool()
		if !m.authorities.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("reading %s.%s: %s has no PEM certificate", f.Setting, f.caSetting(), f.CA)
		}
	}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("reading %s.cert_file and %s.key_file: %w", f.Setting, f.Setting, err)
		}
		m.pair = &pair
	}
	return m, nil
}

// explain says what a failed handshake means and which setting decides it. It
// has names and dates of certificates, nothing of keys.
func (f Files) explain(address string, err error) error {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	what := ""
	switch {
	case errors.As(err, &authority):
		what = f.Setting + ".ca_file does not have the authority that signed the other side's certificate"
	case errors.As(err, &name):
		what = "the certificate has other names than the one that is asked for: dial a name that it has, or set " + f.Setting + ".server_name"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		what = "the other side's certificate is not valid now: renew it, or set the clock right"
	case strings.Contains(err.Error(), "remote error: tls: "):
		what = "the other side does not take the certificate that is shown: check " + f.Setting + ".cert_file and key_file"
	case errors.As(err, new(tls.RecordHeaderError)):
		what = "the other side does not speak TLS there: check the port"
	default:
		return fmt.Errorf("TLS with %s: %w", address, err)
	}
	return fmt.Errorf("TLS with %s: %w (%s)", address, err, what)
}
