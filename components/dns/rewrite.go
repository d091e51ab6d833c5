package dns

import (
	"fmt"
	"strings"

	"github.com/miekg/dns"
)

// rewrites maps names to the names that are looked up instead. Keys and values are lower case and end with a dot. A key
// "*.example.com." applies to all names below example.com, whose suffix is replaced by that of the value,
// "*.example.org.".
type rewrites map[string]string

// parseRewrites validates the names in m and returns them as rewrites. It returns an error if a name is not valid, or only
// one of two names has a wildcard.
func parseRewrites(m map[string]string) (rewrites, error) {
	out := rewrites{}
	for from, to := range m {
		for _, name := range []string{from, to} {
			if _, ok := dns.IsDomainName(name); !ok || name == "" || strings.Contains(strings.TrimPrefix(name, "*."), "*") {
				return nil, fmt.Errorf("%q is not a domain name", name)
			}
		}
		if strings.HasPrefix(from, "*.") != strings.HasPrefix(to, "*.") {
			return nil, fmt.Errorf("%q and %q: both or none must begin with \"*.\"", from, to)
		}
		out[dns.Fqdn(strings.ToLower(from))] = dns.Fqdn(strings.ToLower(to))
	}
	return out, nil
}

// find returns the name to look up instead of name, or false if no rewrite applies. An exact name precedes a suffix, and a
// longer suffix a shorter one.
func (r rewrites) find(name string) (string, bool) {
	if len(r) == 0 {
		return "", false
	}
	name = strings.ToLower(name)
	if to, ok := r[name]; ok {
		return to, true
	}
	for at, end := dns.NextLabel(name, 0); !end; at, end = dns.NextLabel(name, at) {
		if to, ok := r["*."+name[at:]]; ok {
			return name[:at] + strings.TrimPrefix(to, "*."), true
		}
	}
	return "", false
}

// restoreName replaces the name that was looked up by that of the query in the answer m, so that the client sees an
// answer to its question.
func restoreName(m, query *dns.Msg, lookedUp string) {
	m.Question = query.Question
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for i, rr := range section {
			if strings.EqualFold(rr.Header().Name, lookedUp) {
				section[i] = dns.Copy(rr)
				section[i].Header().Name = query.Question[0].Name
			}
		}
	}
}
