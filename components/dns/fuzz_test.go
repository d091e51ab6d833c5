package dns

import (
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/miekg/dns"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// taker is a dns.ResponseWriter that checks that each answer can be packed.
type taker struct {
	dns.ResponseWriter
	t    *testing.T
	size int
}

func (w *taker) RemoteAddr() net.Addr { return &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 5353} }

func (w *taker) WriteMsg(m *dns.Msg) error {
	data, err := m.Pack()
	if err == nil && len(data) > w.size {
		w.t.Errorf("an answer of %d bytes, where %d are the most", len(data), w.size)
	}
	return err
}

// FuzzMessage checks that the server handles any message, over UDP and TCP.
func FuzzMessage(f *testing.F) {
	for _, name := range []string{"web.default.svc.cluster.local.", "_http._tcp.web.default.svc.cluster.local.", "5.0.244.10.in-addr.arpa.", "alias.default.svc.cluster.local.", "."} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV, dns.TypePTR, dns.TypeANY} {
			query := new(dns.Msg).SetQuestion(name, qtype).SetEdns0(1, true)
			data, err := query.Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	file := filepath.Join(f.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		f.Fatal(err)
	}
	server, err := New(Config{
		Address: "unused", Domain: "cluster.local", TTL: 5, ResolvConf: file, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Informers: informers.NewSharedInformerFactory(fake.NewClientset(), 0),
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		query := new(dns.Msg)
		if query.Unpack(data) != nil {
			return
		}
		size := dns.MinMsgSize
		if opt := query.IsEdns0(); opt != nil {
			size = max(size, int(opt.UDPSize()))
		}
		server.serve(t.Context(), &taker{t: t, size: size}, query.Copy(), false)
		server.serve(t.Context(), &taker{t: t, size: dns.MaxMsgSize}, query, true)
	})
}
