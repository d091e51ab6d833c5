// Package identity is what a machine is in its cluster: the cluster's ranges and names,
// which are decided once and kept, the node's addresses, and whether init or join has
// set the machine up.
package identity

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/util/validation"

	"hyperkube/components/cluster/command"
	"hyperkube/internal/atomicfile"
	"hyperkube/internal/layout"
	"hyperkube/internal/netdump"
	"hyperkube/manifests"
)

// Cluster is what a cluster made by `up` decides once, at its first start, and
// keeps from then on.
type Cluster struct {
	NodeName     string   `json:"nodeName"`
	PodCIDRs     []string `json:"podCIDRs"`
	ServiceCIDRs []string `json:"serviceCIDRs"`
	DNSAddress   string   `json:"dnsAddress"`
	Domain       string   `json:"domain"`
	// With are the optional add-ons.
	With []string `json:"with,omitempty"`
	// Endpoint is the stable address of the control plane, if `init` was told
	// one.
	Endpoint string `json:"controlPlaneEndpoint,omitempty"`
}

// Load returns the identity kept in the layout's data, or false when
// there is none yet.
func Load(l layout.Node) (Cluster, bool, error) {
	var id Cluster
	data, err := os.ReadFile(File(l))
	if errors.Is(err, os.ErrNotExist) {
		return id, false, nil
	}
	if err != nil {
		return id, false, fmt.Errorf("reading the cluster's identity: %w", err)
	}
	if err := json.Unmarshal(data, &id); err != nil {
		return id, false, fmt.Errorf("reading the cluster's identity: %s: %w", File(l), err)
	}
	return id, true, nil
}

// File is where the identity is kept.
func File(l layout.Node) string { return filepath.Join(l.Data, "cluster.json") }

// New decides: wish wins where it is set, then what is usual, unless a
// route of the host has it already.
func New(wish Cluster) (Cluster, error) {
	id := wish
	if id.NodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			return id, fmt.Errorf("asking for the hostname: %w", err)
		}
		id.NodeName = strings.ToLower(name)
	}
	if err := CheckNodeName(id.NodeName); err != nil {
		return id, err
	}
	if id.Domain == "" {
		id.Domain = "cluster.local"
	}
	routes, err := HostRoutes()
	if err != nil {
		return id, err
	}
	if err := id.ChooseRanges(routes); err != nil {
		return id, err
	}
	if id.DNSAddress == "" {
		address, err := NthAddress(id.ServiceCIDRs[0], 10)
		if err != nil {
			return id, command.ConfigError(err)
		}
		id.DNSAddress = address.String()
	}
	return id, nil
}

// CheckNodeName refuses names that no Node can have. It is the value of one of its
// labels too, which a hostname, of which Linux takes 64 characters, can be too long
// for: the API server would never take the Node in.
func CheckNodeName(name string) error {
	problems := validation.IsDNS1123Subdomain(name)
	if len(problems) == 0 {
		problems = validation.IsValidLabelValue(name)
	}
	if len(problems) == 0 {
		return nil
	}
	return command.ConfigError(fmt.Errorf("%q is no valid node name: %s; give another with --node-name", name, strings.Join(problems, ", ")))
}

// ChooseRanges chooses what was left open of the ranges of addresses, of the
// families that the other has, and checks what was given.
func (id *Cluster) ChooseRanges(routes []netip.Prefix) error {
	given := id.PodCIDRs
	if len(given) == 0 {
		given = id.ServiceCIDRs
	}
	families, err := familiesOf(given)
	if err != nil {
		return err
	}
	for _, r := range []struct {
		ranges       *[]string
		what         string
		usual4, form string
		from         int
		usual6       string
	}{
		{&id.PodCIDRs, "pods", "10.244.0.0/16", "10.%d.0.0/16", 245, "fd00:10:244::/56"},
		{&id.ServiceCIDRs, "services", "10.96.0.0/16", "10.%d.0.0/16", 97, "fd00:10:96::/112"},
	} {
		if len(*r.ranges) == 0 {
			for _, family := range families {
				cidr := r.usual6
				if family == netlink.FAMILY_V4 {
					if cidr, err = FreeRange(routes, r.usual4, r.form, r.from); err != nil {
						return err
					}
				}
				*r.ranges = append(*r.ranges, cidr)
			}
		}
		has, err := familiesOf(*r.ranges)
		if err != nil {
			return err
		}
		if len(has) != len(*r.ranges) {
			return command.ConfigError(fmt.Errorf("the ranges of %s must be one, or one of each address family: %s", r.what, strings.Join(*r.ranges, ",")))
		}
		if has[0] != families[0] {
			return command.ConfigError(fmt.Errorf("the ranges of pods and of services must begin with the same address family: %s and %s",
				strings.Join(id.PodCIDRs, ","), strings.Join(id.ServiceCIDRs, ",")))
		}
	}
	return nil
}

// Save keeps the identity, synced to disk.
func (id Cluster) Save(l layout.Node) error {
	data, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return fmt.Errorf("keeping the cluster's identity: %w", err)
	}
	if err := atomicfile.Write(atomicfile.File{Path: File(l), Data: append(data, '\n'), Mode: 0o644}); err != nil {
		return fmt.Errorf("keeping the cluster's identity: %w", err)
	}
	return nil
}

// HostRoutes returns the destinations of the host's routes, the default left
// out, and links of the project left out: a crashed cluster's own routes are
// no clash.
func HostRoutes() ([]netip.Prefix, error) {
	routes, err := netdump.Routes(netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("listing the host's routes: %w", err)
	}
	var prefixes []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil || r.Dst.IP == nil {
			continue
		}
		prefix := netdump.Prefix(r.Dst)
		if prefix.Bits() <= 0 {
			continue
		}
		if link, err := netlink.LinkByIndex(r.LinkIndex); err == nil && strings.HasPrefix(link.Attrs().Name, "hk") {
			continue
		}
		prefixes = append(prefixes, prefix.Masked())
	}
	return prefixes, nil
}

// FreeRange returns usual or, if a route has a part of it, the first of the
// pattern from the given number that is free.
func FreeRange(routes []netip.Prefix, usual, pattern string, from int) (string, error) {
	taken := func(cidr string) bool {
		prefix := netip.MustParsePrefix(cidr)
		for _, r := range routes {
			if r.Overlaps(prefix) {
				return true
			}
		}
		return false
	}
	if !taken(usual) {
		return usual, nil
	}
	for n := from; n < 256; n++ {
		if cidr := fmt.Sprintf(pattern, n); !taken(cidr) {
			return cidr, nil
		}
	}
	return "", command.PreflightError(errors.New("every private range for pods or services is taken by a route of this host: choose with --cluster-cidr and --service-cidr"))
}

// Want notes optional add-ons that are wanted from now on.
func (id *Cluster) Want(addons []string) error {
	for _, name := range addons {
		if !slices.Contains(manifests.Optional(), name) {
			return command.ConfigError(fmt.Errorf("--with: there is no add-on %q; there are: %s", name, strings.Join(manifests.Optional(), ", ")))
		}
		if !slices.Contains(id.With, name) {
			id.With = append(id.With, name)
		}
	}
	return nil
}

// FirstPodCIDRs are the parts of a cluster's pod ranges that its first Node gets,
// separated by commas.
func FirstPodCIDRs(cluster []string) (string, error) {
	var parts []string
	for _, text := range cluster {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return "", fmt.Errorf("%q is no address range: %w", text, err)
		}
		size := 24
		if prefix.Addr().Is6() {
			size = 64
		}
		parts = append(parts, netip.PrefixFrom(prefix.Masked().Addr(), max(size, prefix.Bits())).String())
	}
	return strings.Join(parts, ","), nil
}

// NthAddress returns the n-th address of a range, counted from its base.
func NthAddress(cidr string, n int) (netip.Addr, error) {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q is no address range: %w", cidr, err)
	}
	addr := prefix.Masked().Addr()
	for range n {
		addr = addr.Next()
	}
	if !prefix.Contains(addr) {
		return netip.Addr{}, fmt.Errorf("the range %s is too small", cidr)
	}
	return addr, nil
}
