package dns

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/miekg/dns"
)

func TestRewrites(t *testing.T) {
	r, err := parseRewrites(map[string]string{
		"DB.example": "db.prod.svc.cluster.local", "*.example": "*.example.org.", "*.deep.example": "*.svc.cluster.local",
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"db.example.": "db.prod.svc.cluster.local.", "Db.Example.": "db.prod.svc.cluster.local.", "a.db.example.": "a.db.example.org.",
		"web.example.": "web.example.org.", "a.b.deep.example.": "a.b.svc.cluster.local.", "example.": "", "xexample.": "", ".": "", "deep.example.": "deep.example.org.",
	} {
		if got, _ := r.find(name); got != want {
			t.Errorf("%s is rewritten to %q, want %q", name, got, want)
		}
	}
	for _, wrong := range []map[string]string{{"*.a": "b"}, {"a": "*.b"}, {"a..b": "c"}, {"": "a"}, {"a.*.b": "c"}, {"a": ""}} {
		if _, err := parseRewrites(wrong); err == nil {
			t.Errorf("%q is accepted", wrong)
		}
	}
}

// TestRewrittenAnswers checks that clients see an answer to the name that they asked for.
func TestRewrittenAnswers(t *testing.T) {
	dir := t.TempDir()
	for key, text := range map[string]string{keyRewrites: `{"db.example": "web.default.svc.cluster.local", "*.old": "*.default.svc.cluster.local"}`} {
		if err := os.WriteFile(filepath.Join(dir, key), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	custom, err := readCustom(dir)
	if err != nil {
		t.Fatal(err)
	}
	s, _ := startServer(t, "nameserver 127.0.0.1\n")
	s.forward.setCustom(custom)
	for name, want := range map[string]string{"db.example.": "A 10.96.0.7", "Web.Old.": "A 10.96.0.7", "missing.old.": "NXDOMAIN"} {
		answer, _ := s.answer(t.Context(), new(dns.Msg).SetQuestion(name, dns.TypeA), false)
		got := brief(answer.Answer)
		if answer.Rcode != dns.RcodeSuccess {
			got = dns.RcodeToString[answer.Rcode]
		}
		if got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		if answer.Question[0].Name != name {
			t.Errorf("%s: the answer is to the question %s", name, answer.Question[0].Name)
		}
		for _, rr := range answer.Answer {
			if rr.Header().Name != name {
				t.Errorf("%s: the answer has a record of %s", name, rr.Header().Name)
			}
		}
	}
}
