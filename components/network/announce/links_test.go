package announce

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

func TestPlace(t *testing.T) {
	parse := func(texts ...string) (out []netip.Prefix) {
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	links := []link{
		{index: 2, prefixes: parse("192.0.2.11/24", "2001:db8::11/64")},
		{index: 3, prefixes: parse("198.51.100.1/24")},
		{index: 4, prefixes: parse("192.0.2.12/25")},
	}
	node := []netip.Addr{netip.MustParseAddr("192.0.2.11")}
	for address, want := range map[string]string{
		"192.0.2.100":  "map[2:[192.0.2.100] 4:[192.0.2.100]]",
		"192.0.2.200":  "map[2:[192.0.2.200]]",
		"198.51.100.9": "map[3:[198.51.100.9]]",
		"2001:db8::9":  "map[2:[2001:db8::9]]",
		"203.0.113.9":  "map[2:[203.0.113.9]]",
		"2001:db9::9":  "map[2:[2001:db9::9]]",
	} {
		if got := fmt.Sprint(place([]netip.Addr{netip.MustParseAddr(address)}, links, node)); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
	if got := place(node, links[1:2], node); len(got) != 0 {
		t.Errorf("without a link of the node: %v", got)
	}
}

// TestAddressesOn checks which addresses of Services a node announces.
func TestAddressesOn(t *testing.T) {
	svc := balanced("n1", "192.0.2.100", "", "127.0.0.1", "fe80::1", "2001:db8::100")
	if got := fmt.Sprint(addressesOn("n1", svc)); got != "[192.0.2.100 2001:db8::100]" {
		t.Errorf("addresses %s", got)
	}
	if got := addressesOn("n2", svc); got != nil {
		t.Errorf("another node: addresses %s", got)
	}
	svc.Spec.Type = corev1.ServiceTypeClusterIP
	if got := addressesOn("n1", svc); got != nil {
		t.Errorf("another type: addresses %s", got)
	}
}

// failing makes a request fail.
func failing(clienttesting.Action) (bool, runtime.Object, error) {
	return true, nil, fmt.Errorf("the API server does not answer")
}

func isGet(a clienttesting.Action) bool {
	return a.GetVerb() == "get" && a.GetResource().Resource == "services"
}
