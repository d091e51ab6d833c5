package dns

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/miekg/dns"

	"hyperkube/internal/testing/testwait"
)

// TestCustom checks that a query goes to the name servers of the longest matching stub domain, else
// to the custom upstreams, else to the name servers of the node.
func TestCustom(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	own := "192.0.2.1:53"
	expect := func(what string, want map[string]string) {
		t.Helper()
		c, err := readCustom(dir)
		if err != nil {
			t.Fatal(err)
		}
		for name, list := range want {
			if got := c.servers(name, parseServers(t, own)); fmt.Sprint(got) != "["+list+"]" {
				t.Errorf("%s: %s is asked of %v, want %s", what, name, got, list)
			}
		}
	}
	expect("nothing said", map[string]string{"a.example.": own})
	write(keyStubs, `{"Corp.Example": ["10.0.0.1", "10.0.0.2:5353"], "deep.corp.example.": ["fd00::1"]}`)
	stubs := map[string]string{
		"corp.example.": "10.0.0.1:53 10.0.0.2:5353", "A.CORP.example.": "10.0.0.1:53 10.0.0.2:5353", "a.deep.corp.example.": "[fd00::1]:53",
		"xcorp.example.": own, "example.": own, ".": own,
	}
	expect("stubs", stubs)
	write(keyUpstreams, `["10.9.9.9"]`)
	for _, name := range []string{"xcorp.example.", "example.", "."} {
		stubs[name] = "10.9.9.9:53"
	}
	expect("stubs and upstreams", stubs)
	for _, bad := range []string{`{"a": ["ns.example"]}`, `{"a": []}`, `["x"]`, `{`, `{"a..b": ["10.0.0.1"]}`} {
		write(keyStubs, bad)
		if c, err := readCustom(dir); err == nil {
			t.Errorf("%s is taken for %+v", bad, c)
		}
	}
}

// TestFollowCustom checks that a change is applied without a restart, and that invalid files are
// ignored.
func TestFollowCustom(t *testing.T) {
	dir := t.TempDir()
	s := &Server{cfg: Config{CustomDir: dir, Log: slog.New(slog.DiscardHandler)}, forward: &forwarder{cache: newAnswerCache()}}
	ended := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		s.watchCustom(ctx)
	}()
	query := new(dns.Msg).SetQuestion("a.example.", dns.TypeA)
	rr, _ := dns.NewRR("a.example. 60 IN A 192.0.2.1")
	answer := new(dns.Msg).SetReply(query)
	answer.Answer = []dns.RR{rr}
	s.forward.cache.put(query, answer)
	put := func(text string) {
		t.Helper()
		file := filepath.Join(dir, "new")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file, filepath.Join(dir, keyUpstreams)); err != nil {
			t.Fatal(err)
		}
	}
	want := parseServers(t, "10.0.0.1:53")
	// Files that exist before the watch starts are read; later changes arrive as events.
	put(`["10.0.0.1"]`)
	seen := func() bool { return slices.Equal(s.forward.custom.Load().servers("a.", nil), want) }
	testwait.Until(t, "the change to be seen", seen)
	testwait.Until(t, "what others answered to be forgotten", func() bool { return lookup(s.forward.cache, query) == nil })
	put(`nonsense`)
	put(`["10.0.0.2"]`)
	want = parseServers(t, "10.0.0.2:53")
	testwait.Until(t, "the second change to be seen", seen)
	stop()
	<-ended
}
