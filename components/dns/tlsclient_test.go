package dns

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// tlsServer is a name server with DNS over TLS.
type tlsServer struct {
	address     string
	certificate []byte // in PEM format
	connections atomic.Int32
}

// newTLSServer starts a name server whose certificate is valid for name. It closes each connection after perConnection
// answers; 0 means never.
func newTLSServer(t *testing.T, name string, perConnection int) *tlsServer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	s := &tlsServer{address: listener.Addr().String(), certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
	server := &dns.Server{Listener: countingListener{listener, &s.connections}, MaxTCPQueries: perConnection, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		rr, _ := dns.NewRR(q.Question[0].Name + " 60 IN A 192.0.2.1")
		m.Answer = []dns.RR{rr}
		_ = w.WriteMsg(m)
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.ActivateAndServe()
	}()
	t.Cleanup(func() {
		_ = server.Shutdown()
		<-done
	})
	return s
}

// countingListener counts the connections that it accepts.
type countingListener struct {
	net.Listener
	n *atomic.Int32
}

func (l countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.n.Add(1)
	}
	return conn, err
}

// forwarderTo returns a forwarder with the custom name servers and the certificate authority ca.
func forwarderTo(t *testing.T, ca []byte, servers ...string) *forwarder {
	t.Helper()
	dir := t.TempDir()
	for key, data := range map[string][]byte{keyCA: ca, keyUpstreams: fmt.Appendf(nil, `["%s"]`, strings.Join(servers, `", "`))} {
		if data == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, key), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	custom, err := readCustom(dir)
	if err != nil {
		t.Fatal(err)
	}
	f := &forwarder{timeout: time.Minute}
	f.setCustom(custom)
	t.Cleanup(f.close)
	return f
}

// query sends n queries, and returns the last error.
func query(f *forwarder, n int) error {
	var last error
	for i := range n {
		answer, err := f.exchange(context.Background(), new(dns.Msg).SetQuestion(fmt.Sprintf("n%d.example.", i), dns.TypeA), false)
		if err == nil && brief(answer.Answer) != "A 192.0.2.1" {
			err = fmt.Errorf("unexpected answer %v", answer)
		}
		if err != nil {
			last = err
		}
	}
	return last
}

// TestTLS checks that queries to a name server with TLS share a connection, that they are repeated if the name server has
// closed it, and that the certificate is verified.
func TestTLS(t *testing.T) {
	server := newTLSServer(t, "dns.example", 0)
	f := forwarderTo(t, server.certificate, "tls://"+server.address+"#dns.example")
	if err := query(f, 20); err != nil {
		t.Error(err)
	}
	if got := server.connections.Load(); got != 1 {
		t.Errorf("20 queries used %d connections", got)
	}
	closing := newTLSServer(t, "dns.example", 1)
	if err := query(forwarderTo(t, closing.certificate, "tls://"+closing.address+"#dns.example"), 5); err != nil {
		t.Errorf("with a name server that closes connections: %v", err)
	}
	if err := query(forwarderTo(t, server.certificate, "tls://"+server.address+"#other.example"), 1); err == nil || !strings.Contains(err.Error(), "other.example") {
		t.Errorf("with another name: %v", err)
	}
	if err := query(forwarderTo(t, server.certificate, "tls://"+server.address), 1); err == nil {
		t.Error("a certificate without the address is accepted")
	}
	if err := query(forwarderTo(t, nil, "tls://"+server.address+"#dns.example"), 1); err == nil || !strings.Contains(err.Error(), "key ca.crt of the ConfigMap kube-dns") {
		t.Errorf("with an unknown authority: %v", err)
	}
}

// TestCustomAuthority checks that a file without certificates is an error.
func TestCustomAuthority(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, keyCA), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readCustom(dir); err == nil || !strings.Contains(err.Error(), keyCA) {
		t.Errorf("error %v", err)
	}
}
