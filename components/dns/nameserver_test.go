package dns

import "testing"

// parseServers parses the addresses of name servers.
func parseServers(t *testing.T, texts ...string) []nameServer {
	t.Helper()
	out, err := parseNameServers(texts)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestParseNameServer(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.1": "192.0.2.1:53", "192.0.2.1:5353": "192.0.2.1:5353", "2001:db8::1": "[2001:db8::1]:53", "[2001:db8::1]:5353": "[2001:db8::1]:5353",
		"tls://192.0.2.1": "tls://192.0.2.1:853", "tls://192.0.2.1#dns.example": "tls://192.0.2.1:853#dns.example",
		"tls://[2001:db8::1]:8853#dns.example": "tls://[2001:db8::1]:8853#dns.example", "tls://2001:db8::1": "tls://[2001:db8::1]:853",
	} {
		s, err := parseNameServer(text)
		if err != nil || s.String() != want {
			t.Errorf("%s is %s, %v, want %s", text, s, err, want)
		}
		if again, err := parseNameServer(s.String()); err != nil || again != s {
			t.Errorf("%s is parsed as %+v, %v, want %+v", s, again, err, s)
		}
	}
	for _, wrong := range []string{"", "ns.example", "192.0.2.1#dns.example", "tls://", "tls://dns.example", "192.0.2.1:x", "https://192.0.2.1", "tls://192.0.2.1#a..b"} {
		if s, err := parseNameServer(wrong); err == nil {
			t.Errorf("%q is parsed as %+v", wrong, s)
		}
	}
}
