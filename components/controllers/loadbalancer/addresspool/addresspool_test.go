package addresspool

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.0/30":            "192.0.2.1 192.0.2.2 192.0.2.3",
		"192.0.2.254-192.0.3.1":   "192.0.2.254 192.0.3.1",
		" 192.0.2.7 - 192.0.2.7 ": "192.0.2.7",
		"192.0.2.9,192.0.2.7":     "192.0.2.9 192.0.2.7",
		"2001:db8::/126":          "2001:db8::1 2001:db8::2 2001:db8::3",
		"192.0.2.1,2001:db8::5":   "192.0.2.1 2001:db8::5",
		"192.0.2.255/32":          "",
	} {
		pool, err := Parse(strings.Split(text, ","))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var got []string
		for _, ipv6 := range []bool{false, true} {
			for a := range pool.Addresses(ipv6) {
				got = append(got, a.String())
				if !pool.Contains(a) || !pool.HasFamily(ipv6) {
					t.Errorf("%s does not contain %s", text, a)
				}
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", text, got, want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "is not a CIDR",
		"192.0.2.0/33":                  "is not a CIDR",
		"192.0.2.1/24":                  "write 192.0.2.0/24",
		"192.0.2.9-192.0.2.1":           "the last address is below the first one",
		"192.0.2.9-2001:db8::1":         "different IP families",
		"fe80::1%eth0":                  "cannot have a zone",
		"127.0.0.0/8":                   "loopback addresses",
		"0.0.0.0/0":                     "addresses without a network",
		"239.0.0.1":                     "multicast",
		"::ffff:192.0.2.1":              "notation of IPv6",
		"fe80::/64":                     "link-local",
		"ff02::1":                       "multicast",
		"192.0.2.0/24,192.0.2.9":        "192.0.2.9 overlaps with 192.0.2.0/24: remove one of them",
		"192.0.2.9,192.0.2.1-192.0.2.9": "overlaps",
	} {
		if pool, err := Parse(strings.Split(text, ",")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v; want %q", text, pool, err, want)
		}
	}
}

func TestCheckDisjoint(t *testing.T) {
	pool, err := Parse([]string{"10.0.0.10-10.0.0.20", "fd00::/120"})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"10.0.0.0/24":   "10.0.0.10-10.0.0.20 overlaps with what, 10.0.0.0/24: choose unused addresses",
		"10.0.0.16/30":  "overlaps",
		"10.0.0.20/32":  "10.0.0.10-10.0.0.20 contains 10.0.0.20, what",
		"10.0.0.21/32":  "",
		"10.0.0.128/25": "",
		"fd00::80/122":  "overlaps",
		"fd00::100/120": "",
	} {
		err := pool.CheckDisjoint("what", netip.MustParsePrefix(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestRandom compares pools of random ranges with sets of their addresses.
func TestRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	at := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, byte(n >> 8), byte(n)}) }
	for range 500 {
		set := map[netip.Addr]bool{}
		var texts []string
		overlap := false
		for range 1 + random.IntN(3) {
			first := random.IntN(600)
			last := first + random.IntN(100)
			texts = append(texts, fmt.Sprintf("%s-%s", at(first), at(last)))
			for n := first; n <= last; n++ {
				overlap = overlap || set[at(n)]
				set[at(n)] = true
			}
		}
		pool, err := Parse(texts)
		if (err != nil) != overlap {
			t.Fatalf("%v: %v, overlap %v", texts, err, overlap)
		}
		if overlap {
			continue
		}
		all := slices.Collect(pool.Addresses(false))
		for n := range 800 {
			a := at(n)
			if pool.Contains(a) != set[a] {
				t.Fatalf("%v contains %s: %v", texts, a, pool.Contains(a))
			}
			if want := set[a] && n%256 != 0 && n%256 != 255; slices.Contains(all, a) != want {
				t.Fatalf("%v assigns %s: %v", texts, a, !want)
			}
		}
		prefix := netip.PrefixFrom(at(random.IntN(800)), 20+random.IntN(13)).Masked()
		common := false
		for a := range set {
			common = common || prefix.Contains(a)
		}
		if (pool.CheckDisjoint("", prefix) != nil) != common {
			t.Fatalf("%v and %s: disjoint %v", texts, prefix, !common)
		}
	}
}
