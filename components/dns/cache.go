package dns

import (
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// maxCacheTTL limits how long an answer is cached, whatever its own TTL is, so that changes on
	// a name server are visible soon.
	maxCacheTTL = 30 * time.Second
	// maxCacheEntries limits the number of cached answers.
	maxCacheEntries = 4096
)

// cacheKey identifies a cached answer: it contains everything in a query that the answer of an
// upstream name server depends on.
type cacheKey struct {
	name     string // lower case
	qtype    uint16
	do, cd   bool
	authData bool
}

// cacheKeyOf returns the cache key of a query. It returns false if the answer may depend on more
// than the key contains.
func cacheKeyOf(query *dns.Msg) (cacheKey, bool) {
	if len(query.Question) != 1 || !query.RecursionDesired {
		return cacheKey{}, false
	}
	q := cacheKey{name: strings.ToLower(query.Question[0].Name), qtype: query.Question[0].Qtype, cd: query.CheckingDisabled, authData: query.AuthenticatedData}
	if opt := query.IsEdns0(); opt != nil {
		if len(opt.Option) > 0 {
			return cacheKey{}, false
		}
		q.do = opt.Do()
	}
	return q, true
}

// cacheEntry is a cached answer of an upstream name server. answer, storedAt and expiresAt do not change; the mutex of the
// cache guards the other fields.
type cacheEntry struct {
	answer              *dns.Msg
	storedAt, expiresAt time.Time
	// hits is the number of queries that it answered. refreshed is true if get has requested a new answer.
	hits      int
	refreshed bool
}

// minHits is the number of queries from which on an answer is renewed before it expires.
const minHits = 2

// needsRefresh reports whether a new answer should be requested: the entry was used at least minHits times, expires in the
// last tenth of its lifetime, and no new answer was requested.
func (e *cacheEntry) needsRefresh(now time.Time) bool {
	return !e.refreshed && e.hits >= minHits && e.expiresAt.Sub(now)*10 <= e.expiresAt.Sub(e.storedAt)
}

// answerCache caches answers of upstream name servers. A nil cache stores nothing. It is safe for
// concurrent use.
type answerCache struct {
	now func() time.Time

	mu      sync.Mutex // guards the fields below
	answers map[cacheKey]*cacheEntry
}

func newAnswerCache() *answerCache {
	return &answerCache{now: time.Now, answers: map[cacheKey]*cacheEntry{}}
}

// get returns the cached answer to a query, with TTLs reduced by the time in the cache, or nil. refresh is true if the
// caller should request a new answer, because this one is in use and expires soon; it is true once for an answer.
func (m *answerCache) get(query *dns.Msg) (answer *dns.Msg, refresh bool) {
	q, ok := cacheKeyOf(query)
	if m == nil || !ok {
		return nil, false
	}
	now := m.now()
	m.mu.Lock()
	r, ok := m.answers[q]
	if ok && !now.Before(r.expiresAt) {
		delete(m.answers, q)
		ok = false
	}
	if ok {
		r.hits++
		refresh = r.needsRefresh(now)
		r.refreshed = r.refreshed || refresh
	}
	m.mu.Unlock()
	if !ok {
		return nil, false
	}
	out := r.answer.Copy()
	out.Id, out.Question = query.Id, query.Question
	age := uint32(now.Sub(r.storedAt) / time.Second)
	for _, rr := range cacheableRecords(out) {
		rr.Header().Ttl -= min(age, rr.Header().Ttl)
	}
	return out, refresh
}

// put stores the answer to a query, unless it must not be cached. If the cache is full, it removes
// expired and then arbitrary entries.
func (m *answerCache) put(query, answer *dns.Msg) {
	q, ok := cacheKeyOf(query)
	if m == nil || !ok || answer.Truncated {
		return
	}
	left := timeToLive(answer)
	if left <= 0 {
		return
	}
	cached := answer.Copy()
	// OPT records describe the transport between the upstream and this server.
	cached.Extra = nil
	for _, rr := range answer.Extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			cached.Extra = append(cached.Extra, dns.Copy(rr))
		}
	}
	now := m.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.answers) >= maxCacheEntries {
		for old, r := range m.answers {
			if len(m.answers) < maxCacheEntries && now.Before(r.expiresAt) {
				break
			}
			delete(m.answers, old)
		}
	}
	m.answers[q] = &cacheEntry{answer: cached, storedAt: now, expiresAt: now.Add(min(left, maxCacheTTL))}
}

// reset removes all entries, because the upstream name servers have changed.
func (m *answerCache) reset() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.answers)
}

// timeToLive returns how long an answer may be cached, which is its lowest TTL. It returns zero for answers
// that may not be cached: errors, and negative answers without a SOA record, from which their TTL comes (RFC
// 2308).
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
	for _, rr := range cacheableRecords(answer) {
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

// cacheableRecords returns all records of a message except OPT records.
func cacheableRecords(m *dns.Msg) []dns.RR {
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
