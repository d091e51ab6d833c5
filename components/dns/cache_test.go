package dns

import (
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestMemory checks that an answer is served from the cache to all clients until its TTL expires.
func TestMemory(t *testing.T) {
	now := time.Unix(1000, 0)
	m := newAnswerCache()
	m.now = func() time.Time { return now }
	query := func(name string, change ...func(*dns.Msg)) *dns.Msg {
		q := new(dns.Msg)
		q.SetQuestion(name, dns.TypeA)
		for _, f := range change {
			f(q)
		}
		return q
	}
	reply := func(q *dns.Msg, rcode int, answer, authority string) *dns.Msg {
		a := new(dns.Msg)
		a.SetRcode(q, rcode)
		for text, section := range map[string]*[]dns.RR{answer: &a.Answer, authority: &a.Ns} {
			if text == "" {
				continue
			}
			rr, err := dns.NewRR(text)
			if err != nil {
				t.Fatal(err)
			}
			*section = []dns.RR{rr}
		}
		return a
	}
	const soa = "example. 60 IN SOA ns.example. me.example. 1 1 1 1 7"
	for name, c := range map[string]struct {
		rcode             int
		answer, authority string
		kept              time.Duration
	}{
		"short.":    {dns.RcodeSuccess, "short. 9 IN A 192.0.2.1", "", 9 * time.Second},
		"long.":     {dns.RcodeSuccess, "long. 900 IN A 192.0.2.1", "", maxCacheTTL},
		"never.":    {dns.RcodeSuccess, "never. 0 IN A 192.0.2.1", "", 0},
		"none.":     {dns.RcodeNameError, "", soa, 7 * time.Second},
		"nothing.":  {dns.RcodeSuccess, "", soa, 7 * time.Second},
		"not-said.": {dns.RcodeNameError, "", "", 0},
		"broken.":   {dns.RcodeServerFailure, "", soa, 0},
	} {
		now = time.Unix(1000, 0)
		q := query(name)
		m.put(q, reply(q, c.rcode, c.answer, c.authority))
		if c.kept == 0 {
			if lookup(m, q) != nil {
				t.Errorf("%s is remembered", name)
			}
			continue
		}
		now = now.Add(c.kept - time.Second)
		again := query(name)
		got := lookup(m, again)
		if got == nil || got.Id != again.Id || got.Rcode != c.rcode {
			t.Errorf("%s: %v", name, got)
			continue
		}
		if len(got.Answer) > 0 && name == "short." && got.Answer[0].Header().Ttl != 1 {
			t.Errorf("%s: %v is left", name, got.Answer[0])
		}
		now = now.Add(time.Second)
		if lookup(m, query(name)) != nil {
			t.Errorf("%s is remembered for too long", name)
		}
	}
	now = time.Unix(1000, 0)
	q := query("short.")
	m.put(q, reply(q, dns.RcodeSuccess, "short. 9 IN A 192.0.2.1", ""))
	if got := lookup(m, query("SHORT.")); got == nil || got.Question[0].Name != "SHORT." {
		t.Errorf("by another spelling: %v", got)
	}
	for name, other := range map[string]*dns.Msg{
		"type":   query("short.", func(q *dns.Msg) { q.Question[0].Qtype = dns.TypeAAAA }),
		"DNSSEC": query("short.", func(q *dns.Msg) { q.SetEdns0(4096, true) }),
		"options": query("short.", func(q *dns.Msg) {
			q.SetEdns0(4096, false)
			q.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_NSID{Code: dns.EDNS0NSID}}
		}),
	} {
		if lookup(m, other) != nil {
			t.Errorf("another %s has the same answer", name)
		}
	}
	for i := range maxCacheEntries + 10 {
		q := query(dns.Fqdn(time.Unix(int64(i), 0).UTC().Format("20060102150405")))
		m.put(q, reply(q, dns.RcodeSuccess, q.Question[0].Name+" 9 IN A 192.0.2.1", ""))
	}
	if len(m.answers) > maxCacheEntries {
		t.Errorf("%d answers are remembered", len(m.answers))
	}
}

// lookup returns the cached answer to a query, or nil.
func lookup(m *answerCache, query *dns.Msg) *dns.Msg {
	answer, _ := m.get(query)
	return answer
}

// TestRefresh checks that a new answer is requested once, for an answer that is in use and expires soon.
func TestRefresh(t *testing.T) {
	now := time.Now()
	m := newAnswerCache()
	m.now = func() time.Time { return now }
	query := new(dns.Msg).SetQuestion("a.example.", dns.TypeA)
	answer := new(dns.Msg).SetReply(query)
	record, _ := dns.NewRR("a.example. 20 IN A 192.0.2.1")
	answer.Answer = []dns.RR{record}
	m.put(query, answer)
	refreshes := func(after time.Duration) bool {
		t.Helper()
		now = now.Add(after)
		got, refresh := m.get(query)
		if got == nil {
			t.Fatal("the answer is not cached")
		}
		return refresh
	}
	for i, c := range []struct {
		after time.Duration
		want  bool
	}{{time.Second, false}, {16 * time.Second, false}, {time.Second, true}, {500 * time.Millisecond, false}} {
		if got := refreshes(c.after); got != c.want {
			t.Errorf("query %d: refresh is %v", i, got)
		}
	}
	m.put(query, answer)
	if refreshes(19 * time.Second) {
		t.Error("an answer that was used once is refreshed")
	}
}
