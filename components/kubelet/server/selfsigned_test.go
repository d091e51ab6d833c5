package server

import (
	"bytes"
	"crypto/x509"
	"net/netip"
	"testing"
	"time"
)

// TestSelfSigned checks that the self-signed certificate is replaced before it expires.
func TestSelfSigned(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := &SelfSigned{name: "n", addresses: []netip.Addr{netip.MustParseAddr("192.0.2.7")}, now: func() time.Time { return now }}
	read := func() (*x509.Certificate, []byte) {
		t.Helper()
		c, err := s.Certificate()
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(c.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return leaf, c.Certificate[0]
	}
	first, raw := read()
	if first.NotAfter != now.AddDate(1, 0, 0) || len(first.IPAddresses) != 1 || first.DNSNames[0] != "n" {
		t.Errorf("%+v", first)
	}
	now = first.NotAfter.Add(-renewBefore - time.Second)
	if _, again := read(); !bytes.Equal(raw, again) {
		t.Error("it was replaced too early")
	}
	now = now.Add(time.Second)
	if next, again := read(); bytes.Equal(raw, again) || next.NotAfter != now.AddDate(1, 0, 0) {
		t.Error("it was not replaced before it expired")
	}
}
