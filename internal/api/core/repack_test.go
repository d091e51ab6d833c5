package core

import (
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/dump"
)

func TestRepackSubsets(t *testing.T) {
	for name, test := range map[string]struct{ subsets, want string }{
		"nothing":          {"{}", "{}"},
		"one":              {"{subsets: [{addresses: [{ip: 1.1.1.1}], ports: [{port: 80}]}]}", "{subsets: [{addresses: [{ip: 1.1.1.1}], ports: [{port: 80}]}]}"},
		"sorted, and once": {"{subsets: [{addresses: [{ip: 1.1.1.2}, {ip: 1.1.1.1}, {ip: 1.1.1.2}], ports: [{port: 80}, {port: 80}]}]}", "{subsets: [{addresses: [{ip: 1.1.1.1}, {ip: 1.1.1.2}], ports: [{port: 80}]}]}"},
		"one port, several subsets": {"{subsets: [{addresses: [{ip: 1.1.1.2}], ports: [{port: 80}]}, {addresses: [{ip: 1.1.1.1}], ports: [{port: 80}]}]}",
			"{subsets: [{addresses: [{ip: 1.1.1.1}, {ip: 1.1.1.2}], ports: [{port: 80}]}]}"},
		"same addresses, several subsets": {"{subsets: [{addresses: [{ip: 1.1.1.1}], ports: [{name: a, port: 80}]}, {addresses: [{ip: 1.1.1.1}], ports: [{name: b, port: 81}]}]}",
			"{subsets: [{addresses: [{ip: 1.1.1.1}], ports: [{name: a, port: 80}, {name: b, port: 81}]}]}"},
		"overlapping": {"{subsets: [{addresses: [{ip: 1.1.1.1}, {ip: 1.1.1.2}], ports: [{name: a, port: 80}]}, {addresses: [{ip: 1.1.1.2}], ports: [{name: b, port: 81}]}]}",
			"{subsets: [{addresses: [{ip: 1.1.1.1}, {ip: 1.1.1.2}], ports: [{name: a, port: 80}]}, {addresses: [{ip: 1.1.1.2}], ports: [{name: b, port: 81}]}]}"},
		"not ready wins": {"{subsets: [{notReadyAddresses: [{ip: 1.1.1.1}], ports: [{port: 80}]}, {addresses: [{ip: 1.1.1.1}, {ip: 1.1.1.2}], ports: [{port: 80}]}]}",
			"{subsets: [{addresses: [{ip: 1.1.1.2}], notReadyAddresses: [{ip: 1.1.1.1}], ports: [{port: 80}]}]}"},
		"ready for one port only": {"{subsets: [{addresses: [{ip: 1.1.1.1}], ports: [{name: a, port: 80}]}, {notReadyAddresses: [{ip: 1.1.1.1}], ports: [{name: b, port: 81}]}]}",
			"{subsets: [{addresses: [{ip: 1.1.1.1}], ports: [{name: a, port: 80}]}, {notReadyAddresses: [{ip: 1.1.1.1}], ports: [{name: b, port: 81}]}]}"},
		"pods of one address": {"{subsets: [{addresses: [{ip: 1.1.1.1, targetRef: {uid: b}}, {ip: 1.1.1.1, targetRef: {uid: a}}, {ip: 1.1.1.1}], ports: [{port: 80}]}]}",
			"{subsets: [{addresses: [{ip: 1.1.1.1}, {ip: 1.1.1.1, targetRef: {uid: a}}, {ip: 1.1.1.1, targetRef: {uid: b}}], ports: [{port: 80}]}]}"},
		"no ports": {"{subsets: [{addresses: [{ip: 1.1.1.2}]}, {addresses: [{ip: 1.1.1.1}]}]}", "{subsets: [{addresses: [{ip: 1.1.1.1}, {ip: 1.1.1.2}]}]}"},
		"application protocols": {"{subsets: [{addresses: [{ip: 1.1.1.1}], ports: [{port: 80, appProtocol: h2c}]}, {addresses: [{ip: 1.1.1.2}], ports: [{port: 80, appProtocol: h2c}]}]}",
			"{subsets: [{addresses: [{ip: 1.1.1.1}, {ip: 1.1.1.2}], ports: [{port: 80, appProtocol: h2c}]}]}"},
	} {
		got := repackSubsets(parse[corev1.Endpoints](t, test.subsets).Subsets)
		want := parse[corev1.Endpoints](t, test.want).Subsets
		// The order of subsets and ports is that of hashes.
		sortByHash(want, hashedSubset)
		for i := range want {
			sortByHash(want[i].Ports, func(p corev1.EndpointPort) any { return hashedPort(p) })
		}
		sortByHash(want, hashedSubset)
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
		again := repackSubsets(slices.Clone(got))
		if diff := gocmp.Diff(got, again); diff != "" {
			t.Errorf("%s: packed twice:\n%s", name, diff)
		}
	}
}

// TestHashedNames holds what is hashed against what upstream hashes.
func TestHashedNames(t *testing.T) {
	got := dump.ForHash(hashedPort(corev1.EndpointPort{Name: "a", Port: 80, Protocol: corev1.ProtocolTCP}))
	if want := `(core.EndpointPort){Name:(string)a Port:(int32)80 Protocol:(core.Protocol)TCP AppProtocol:(*string)<nil>}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
