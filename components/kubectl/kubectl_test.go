package kubectl

import (
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// TestAdapt holds that servers see kubectl, whatever the program is called.
func TestAdapt(t *testing.T) {
	c := adapt(&rest.Config{})
	if !strings.HasPrefix(c.UserAgent, "kubectl/v") || !strings.Contains(c.UserAgent, "kubernetes/") {
		t.Errorf("the user agent is %q", c.UserAgent)
	}
	if c.QPS != perSecond || c.Burst != burst {
		t.Errorf("it asks %v times a second, %v at once", c.QPS, c.Burst)
	}
	if c = adapt(&rest.Config{UserAgent: "mine"}); c.UserAgent != "mine" {
		t.Errorf("the user agent is %q", c.UserAgent)
	}
}
