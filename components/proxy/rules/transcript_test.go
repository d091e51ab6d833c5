package rules

import (
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"hyperkube/internal/host/packetfilter"
)

// TestTranscript prints what is written for ports of services, in the notation of iptables-restore.
// Run it with -rewrite to update testdata.
//
// "build" prints the difference between the rules without any port and those of the ports in the
// input, and "start" prints all rules, with the jumps. "nftables" prints the sets and chains of nftables that exist for the ports.
// Their arguments are the settings of Config.
// A port is a line: NAMESPACE/SERVICE[:NAME] PROTOCOL CLUSTERIP:PORT, and these words:
//
//	node=PORT external=IP balancer=IP allow=RANGE affinity=SECONDS health=PORT
//	local            both traffic policies are Local
//	local-internal   one of them
//	local-external
//	ADDRESS:PORT     an endpoint of another node
//	here=ADDRESS:PORT
func TestTranscript(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			cfg := parseConfig(t, d.CmdArgs)
			var ports []*Port
			for line := range strings.Lines(d.Input) {
				ports = append(ports, parsePort(t, strings.Fields(line)))
			}
			if d.Cmd == "nftables" {
				translator := NewTranslator(packetfilter.NFTables)
				translator.Replace(nil, ports)
				set := translator.Build(cfg)
				maps.DeleteFunc(set.Chains, func(c packetfilter.Chain, rules []packetfilter.Rule) bool { return len(rules) == 0 })
				family := packetfilter.FamilyOf(cfg.IPv6)
				return packetfilter.TextSets(family, set) + packetfilter.TextNFTables(family, set.Chains)
			}
			kernel := &memory{chains: packetfilter.Chains{}}
			if d.Cmd == "build" {
				kernel.chains = Build(cfg, nil).Chains
			}
			writer := packetfilter.NewWriter(packetfilter.Config{Objects: ServiceChains(), Backend: kernel})
			sync := func(set packetfilter.Ruleset) string {
				if err := writer.Sync(t.Context(), packetfilter.FamilyOf(cfg.IPv6), set); err != nil {
					t.Fatal(err)
				}
				return kernel.changes[len(kernel.changes)-1].String()
			}
			switch d.Cmd {
			case "build":
				sync(Build(cfg, nil))
			case "start":
			default:
				t.Fatalf("unknown command %s", d.Cmd)
			}
			return sync(Build(cfg, ports))
		})
	})
}

func parseConfig(t *testing.T, args []datadriven.CmdArg) Config {
	var cfg Config
	for _, arg := range args {
		switch arg.Key {
		case "ipv6":
			cfg.IPv6 = true
		case "pods":
			cfg.Pods = FromRange(netip.MustParsePrefix(arg.Vals[0]))
		case "bridge":
			cfg.Pods = FromInterface(arg.Vals[0])
		case "masquerade-all":
			cfg.MasqueradeAll = true
		case "localhost":
			cfg.LocalhostNodePorts = true
		case "liberal":
			cfg.Liberal = true
		case "mark":
			mark, err := strconv.ParseUint(arg.Vals[0], 0, 32)
			if err != nil {
				t.Fatal(err)
			}
			cfg.MasqueradeMark = uint32(mark)
		case "node":
			cfg.NodeIPs = append(cfg.NodeIPs, netip.MustParseAddr(arg.Vals[0]))
		case "node-ports":
			for _, text := range arg.Vals {
				cfg.NodePortRanges = append(cfg.NodePortRanges, netip.MustParsePrefix(text))
			}
		default:
			t.Fatalf("unknown setting %s", arg.Key)
		}
	}
	return cfg
}

func parsePort(t *testing.T, words []string) *Port {
	p := &Port{Protocol: words[1]}
	id, name, _ := strings.Cut(words[0], ":")
	p.Namespace, p.Service, _ = strings.Cut(id, "/")
	p.Name = name
	at := netip.MustParseAddrPort(words[2])
	p.ClusterIP, p.Port = at.Addr(), at.Port()
	number := func(text string) int {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, word := range words[3:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "node":
			p.NodePort = uint16(number(value))
		case "external":
			p.ExternalIPs = append(p.ExternalIPs, netip.MustParseAddr(value))
		case "balancer":
			p.LoadBalancerIPs = append(p.LoadBalancerIPs, netip.MustParseAddr(value))
		case "allow":
			p.SourceRanges = append(p.SourceRanges, netip.MustParsePrefix(value))
		case "affinity":
			p.Affinity = number(value)
		case "health":
			p.HealthCheckPort = uint16(number(value))
		case "local":
			p.LocalInternal, p.LocalExternal = true, true
		case "local-internal":
			p.LocalInternal = true
		case "local-external":
			p.LocalExternal = true
		case "here":
			p.LocalEndpoints = append(p.LocalEndpoints, endpoint(value))
			p.Endpoints = append(p.Endpoints, endpoint(value))
		default:
			if value != "" {
				t.Fatal(fmt.Errorf("unknown word %s", word))
			}
			p.Endpoints = append(p.Endpoints, endpoint(word))
		}
	}
	p.HasAny = len(p.Endpoints) > 0
	return p
}
