package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates of a test.
type Authority struct {
	// File has the authority's certificate, PEM.
	File string

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Certificate says what an Authority signs. Zero values: no names, the loopback
// address, valid from an hour ago for two hours.
type Certificate struct {
	Names       []string // DNS
	WithoutIP   bool
	From, Until time.Time
}

// NewAuthority makes an authority that nobody believes yet.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{File: filepath.Join(t.TempDir(), "ca.pem"), key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: "an authority of " + t.Name()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der := sign(t, template, template, a.key, a.key)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	writePEM(t, a.File, "CERTIFICATE", der, 0o644)
	return a
}

// Issue writes a certificate and its key into a folder of their own.
func (a *Authority) Issue(t testing.TB, c Certificate) (certFile, keyFile string) {
	t.Helper()
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	a.IssueTo(t, c, certFile, keyFile)
	return certFile, keyFile
}

// IssueTo writes a certificate and its key over files, as a renewal does.
func (a *Authority) IssueTo(t testing.TB, c Certificate, certFile, keyFile string) {
	t.Helper()
	if c.From.IsZero() {
		c.From = time.Now().Add(-time.Hour)
	}
	if c.Until.IsZero() {
		c.Until = time.Now().Add(time.Hour)
	}
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: "a certificate of " + t.Name()}, NotBefore: c.From, NotAfter: c.Until,
		DNSNames: c.Names, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if !c.WithoutIP {
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, certFile, "CERTIFICATE", sign(t, template, a.cert, key, a.key), 0o644)
	writePEM(t, keyFile, "PRIVATE KEY", der, 0o600)
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func serial(t testing.TB) *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func sign(t testing.TB, template, parent *x509.Certificate, key, by *ecdsa.PrivateKey) []byte {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// writePEM replaces a file whole: who reads it meanwhile sees the old or the
// new one.
func writePEM(t testing.TB, path, kind string, der []byte, mode os.FileMode) {
	content := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(path+".new", content, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}
