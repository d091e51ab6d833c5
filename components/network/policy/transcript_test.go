package policy

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	"hyperkube/internal/host/packetfilter"
)

// TestTranscript prints the rules that enforce policies, in the notation of iptables-restore. Run it
// with -rewrite to update testdata.
//
// "build" prints the rules of IPv4 and "build ipv6" those of IPv6. With the argument "nftables", they print the chains of
// nftables. The input has these lines:
//
//	namespace NAME KEY=VALUE...
//	pod NAMESPACE/NAME ADDRESS... KEY=VALUE... port:NAME=[PROTOCOL/]NUMBER... [elsewhere]
//	policy NAMESPACE/NAME SPEC
//	cluster NAME SPEC
//
// A pod runs on this node unless it is elsewhere. SPEC is YAML of a NetworkPolicySpec, or of a ClusterNetworkPolicySpec, in one
// line.
func TestTranscript(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "build" {
				t.Fatalf("unknown command %s", d.Cmd)
			}
			chains := build(parseState(t, d.Input), "hk-br0", d.HasArg("ipv6"))
			if d.HasArg("nftables") {
				return packetfilter.TextNFTables(packetfilter.FamilyOf(d.HasArg("ipv6")), chains)
			}
			return packetfilter.Change{Replace: chains}.String()
		})
	})
}

func parseState(t *testing.T, input string) *State {
	s := &State{Namespaces: map[string]labels.Set{}}
	for line := range strings.Lines(input) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, rest, _ := strings.Cut(rest, " ")
		namespace, short, _ := strings.Cut(name, "/")
		switch kind {
		case "namespace":
			s.Namespaces[name] = parsePod(t, rest).Labels
		case "pod":
			p := parsePod(t, rest)
			p.Namespace, p.Name = namespace, short
			s.Pods = append(s.Pods, p)
		case "policy":
			p := &networkingv1.NetworkPolicy{}
			p.Namespace, p.Name = namespace, short
			if err := yaml.UnmarshalStrict([]byte(rest), &p.Spec); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			s.Policies = append(s.Policies, p)
		case "cluster":
			p := &policyv1alpha2.ClusterNetworkPolicy{}
			p.Name = name
			if err := yaml.Unmarshal([]byte(rest), &p.Spec); err != nil { // not strict, for fields of later versions
				t.Fatalf("%s: %v", line, err)
			}
			s.ClusterPolicies = append(s.ClusterPolicies, p)
		default:
			t.Fatalf("unknown line %q", line)
		}
	}
	slices.SortFunc(s.ClusterPolicies, compareClusterPolicies)
	return s
}

func parsePod(t *testing.T, text string) *Pod {
	p := &Pod{Labels: labels.Set{}, Local: true}
	for _, word := range strings.Fields(text) {
		key, value, assigned := strings.Cut(word, "=")
		port, isPort := strings.CutPrefix(key, "port:")
		switch {
		case word == "elsewhere":
			p.Local = false
		case !assigned:
			p.IPs = append(p.IPs, netip.MustParseAddr(word))
		case isPort:
			protocol, number, other := strings.Cut(value, "/")
			if !other {
				protocol, number = "tcp", value
			}
			n, err := strconv.ParseInt(number, 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			p.Ports = append(p.Ports, Port{port, corev1.Protocol(strings.ToUpper(protocol)), int32(n)})
		default:
			p.Labels[key] = value
		}
	}
	return p
}
