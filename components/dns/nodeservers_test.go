package dns

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/miekg/dns"

	"hyperkube/internal/testing/testwait"
)

// TestFollowNodeServers checks that new name servers of the node are used without a restart, and that files without
// usable name servers are ignored.
func TestFollowNodeServers(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "resolv.conf")
	s := &Server{
		cfg: Config{
			NodeResolvConf: file, NotUpstream: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Log: slog.New(slog.DiscardHandler),
		},
		forward: &forwarder{upstreams: parseServers(t, "192.0.2.1:53"), cache: newAnswerCache()},
	}
	query := new(dns.Msg).SetQuestion("a.example.", dns.TypeA)
	record, _ := dns.NewRR("a.example. 60 IN A 192.0.2.9")
	answer := new(dns.Msg).SetReply(query)
	answer.Answer = []dns.RR{record}
	s.forward.cache.put(query, answer)
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	uses := func(want ...string) func() bool {
		return func() bool { return slices.Equal(s.forward.nodeServers(), parseServers(t, want...)) }
	}
	s.loadNodeServers() // the file does not exist
	if !uses("192.0.2.1:53")() {
		t.Errorf("uses %v, want the name servers of the pod", s.forward.nodeServers())
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.followNodeServers(ctx)
	}()
	put("nameserver 192.0.2.2\n")
	testwait.Until(t, "the new name server to be used", uses("192.0.2.2:53"))
	testwait.Until(t, "the cache to be cleared", func() bool { return lookup(s.forward.cache, query) == nil })
	put("nameserver 127.0.0.53\nnameserver 10.96.0.10\n")
	put("nameserver 192.0.2.3\nnameserver 2001:db8::3\n")
	testwait.Until(t, "the second change to be used", uses("192.0.2.3:53", "[2001:db8::3]:53"))
	put("nameserver 127.0.0.53\nnameserver 10.96.0.10\n")
	s.loadNodeServers()
	if !uses("192.0.2.3:53", "[2001:db8::3]:53")() {
		t.Errorf("uses %v after a file without usable name servers", s.forward.nodeServers())
	}
	cancel()
	<-stopped
	s.cfg.NodeResolvConf = filepath.Join(dir, "missing", "resolv.conf")
	s.followNodeServers(t.Context()) // returns, because there is no directory to watch
}
