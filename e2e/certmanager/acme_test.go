//go:build linux

package certmanager

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"testing"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"
)

// acmeServer is a certificate authority that validates names with HTTP-01.
type acmeServer struct {
	directory string         // URL of its directory
	bundle    string         // certificate of the server itself, base64 of PEM
	roots     *x509.CertPool // root of the certificates that it issues
}

// startACME starts an ACME server. It connects to port 80 of the addresses that the DNS server at nameserver returns.
func startACME(t *testing.T, nameserver string) acmeServer {
	t.Helper()
	t.Setenv("PEBBLE_VA_NOSLEEP", "1")
	t.Setenv("PEBBLE_WFE_NONCEREJECT", "0")
	logger := log.New(io.Discard, "", 0)
	store := db.NewMemoryStore()
	authority := ca.New(logger, store, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {Description: "default"}})
	validation := va.New(logger, 80, 443, false, nameserver, store)
	frontEnd := wfe.New(logger, store, validation, authority, []string{"pebble.letsencrypt.org"}, false, false, 1, 1)
	server := httptest.NewTLSServer(frontEnd.Handler())
	t.Cleanup(server.Close)
	root, err := x509.ParseCertificate(authority.GetRootCert(0).DER)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(root)
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return acmeServer{directory: server.URL + wfe.DirectoryPath, bundle: base64.StdEncoding.EncodeToString(own), roots: pool}
}

// startDNS starts a DNS server with the address of the node for all names, and returns its address. It serves TCP, which
// the ACME server uses, and UDP, which cert-manager uses.
func startDNS(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	packets, err := net.ListenPacket("udp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range []*dns.Server{{Listener: listener}, {PacketConn: packets}} {
		server.Handler = dns.HandlerFunc(answer)
		served := make(chan error, 1)
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		go func() { served <- server.ActivateAndServe() }()
		select {
		case <-started:
		case err := <-served:
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = server.Shutdown() // it may have failed already, which served reports
			if err := <-served; err != nil {
				t.Errorf("serving DNS: %v", err)
			}
		})
	}
	return listener.Addr().String()
}

// answer answers a query for an IPv4 address.
func answer(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	if len(q.Question) == 1 && q.Question[0].Qtype == dns.TypeA {
		header := dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}
		m.Answer = []dns.RR{&dns.A{Hdr: header, A: net.ParseIP(nodeAddress)}}
	}
	_ = w.WriteMsg(m) // the client repeats its query
}
