package podnet

import (
	"strings"
	"testing"
)

// TestForwardComesAfterProxy checks that our jumps do not accept packets before the rules of the
// proxy that reject or drop them.
func TestForwardComesAfterProxy(t *testing.T) {
	n := &Network{cfg: Config{Bridge: "hk-br0"}, ports: map[string][]portRule{}}
	const (
		ours   = "-A FORWARD -m comment --comment \"hyperkube pod network\" -j HK-FORWARD\n"
		proxy  = "-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES\n-A FORWARD -j KUBE-FORWARD\n"
		others = "-A FORWARD -j DOCKER\n"
	)
	for name, c := range map[string]struct {
		there string
		want  string // expected writes to FORWARD, without the rule itself
	}{
		"nothing":               {"", "-I FORWARD 1"},
		"others":                {others, "-I FORWARD 1"},
		"the proxy":             {proxy + others, "-I FORWARD 3"},
		"ours, right":           {proxy + ours + others, ""},
		"ours alone":            {ours, ""},
		"ours before the proxy": {ours + proxy, "-D FORWARD -I FORWARD 3"},
	} {
		var got []string
		for line := range strings.Lines(written(t, n, "10.9.0.0/24", "*filter\n"+c.there+"COMMIT\n")) {
			if line = strings.TrimSpace(line); strings.Contains(line, " FORWARD ") && !strings.HasSuffix(line, "HK-POLICY") {
				if !strings.HasSuffix(line, "-j HK-FORWARD") {
					t.Errorf("%s: changes another rule: %s", name, line)
				}
				line, _, _ = strings.Cut(line, " -m")
				got = append(got, line)
			}
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s: %q, want %q", name, text, c.want)
		}
	}
}
