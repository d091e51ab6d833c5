package dns

import (
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// longestKept bounds for how long an answer is given again, whatever its own
	// time to live: what a name server tells anew is known here soon.
	longestKept = 30 * time.Second
	// mostKept bounds how many answers are remembered.
	mostKept = 4096
)

// question is what the answer of a name server depends on.
type question struct {
	name     string // lower-case
	qtype    uint16
	do, cd   bool
	authData bool
}

// questionOf reads a query; false if its answer may depend on more.
func questionOf(query *dns.Msg) (question, bool) {
	if len(query.Question) != 1 || !query.RecursionDesired {
		return question{}, false
	}
	q := question{name: strings.ToLower(query.Question[0].Name), qtype: query.Question[0].Qtype, cd: query.CheckingDisabled, authData: query.AuthenticatedData}
	if opt := query.IsEdns0(); opt != nil {
		if len(opt.Option) > 0 {
			return question{}, false
		}
		q.do = opt.Do()
	}
	return q, true
}

// remembered is an answer, which is not written to.
type remembered struct {
	answer       *dns.Msg
	since, until time.Time
}

// memory is what name servers have answered of late. A nil memory remembers
// nothing. It is safe for several goroutines.
type memory struct {
	now func() time.Time

	mu      sync.Mutex // guards what follows
	answers map[question]remembered
}

func newMemory() *memory { return &memory{now: time.Now, answers: map[question]remembered{}} }

// answer returns the answer to a query if it is remembered, with what is left of
// its time to live.
func (m *memory) answer(query *dns.Msg) *dns.Msg {
	q, ok := questionOf(query)
	if m == nil || !ok {
		return nil
	}
	now := m.now()
	m.mu.Lock()
	r, ok := m.answers[q]
	if ok && !now.Before(r.until) {
		delete(m.answers, q)
		ok = false
	}
	m.mu.Unlock()
	if !ok {
		return nil
	}
	out := r.answer.Copy()
	out.Id, out.Question = query.Id, query.Question
	age := uint32(now.Sub(r.since) / time.Second)
	for _, rr := range records(out) {
		rr.Header().Ttl -= min(age, rr.Header().Ttl)
	}
	return out
}

// keep remembers the answer to a query, if it may be given again.
func (m *memory) keep(query, answer *dns.Msg) {
	q, ok := questionOf(query)
	if m == nil || !ok || answer.Truncated {
		return
	}
	left := timeToLive(answer)
	if left <= 0 {
		return
	}
	kept := answer.Copy()
	// What is said of the transport is between the name server and this one.
	kept.Extra = nil
	for _, rr := range answer.Extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			kept.Extra = append(kept.Extra, dns.Copy(rr))
		}
	}
	now := m.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.answers) >= mostKept {
		for old, r := range m.answers {
			if len(m.answers) < mostKept && now.Before(r.until) {
				break
			}
			delete(m.answers, old)
		}
	}
	m.answers[q] = remembered{kept, now, now.Add(min(left, longestKept))}
}

// forget forgets everything.
func (m *memory) forget() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.answers)
}

// timeToLive is for how long an answer is true by its own account; zero for one that
// is none, or does not say. That there is nothing is true for as long as the SOA
// says (RFC 2308).
func timeToLive(answer *dns.Msg) time.Duration {
	if answer.Rcode != dns.RcodeSuccess && answer.Rcode != dns.RcodeNameError {
		return 0
	}
	var least uint32
	known := false
	see := func(ttl uint32) {
		if !known || ttl < least {
			least, known = ttl, true
		}
	}
	for _, rr := range records(answer) {
		see(rr.Header().Ttl)
	}
	if len(answer.Answer) == 0 || answer.Rcode == dns.RcodeNameError {
		said := false
		for _, rr := range answer.Ns {
			if soa, ok := rr.(*dns.SOA); ok {
				said = true
				see(soa.Minttl)
			}
		}
		if !said {
			return 0
		}
	}
	return time.Duration(least) * time.Second
}

// records are those of a message that are remembered.
func records(m *dns.Msg) []dns.RR {
	var all []dns.RR
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if rr.Header().Rrtype != dns.TypeOPT {
				all = append(all, rr)
			}
		}
	}
	return all
}
