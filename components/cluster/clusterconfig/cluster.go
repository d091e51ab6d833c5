// Package clusterconfig contains the configuration of a cluster and of this machine in it: the
// CIDRs and names that are chosen at the first start and saved, the addresses of the node, and
// whether init or join has set up the machine.
package clusterconfig

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
	"hyperkube/internal/host/atomicfile"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/netlinkutil"
	"hyperkube/manifests"
)

// Cluster is the identity of a cluster: node name, CIDRs, DNS domain and add-ons. `up` and `init` choose it at the
// first start of a cluster and then keep it.
type Cluster struct {
	NodeName     string   `json:"nodeName"`
	PodCIDRs     []string `json:"podCIDRs"`
	ServiceCIDRs []string `json:"serviceCIDRs"`
	DNSAddress   string   `json:"dnsAddress"`
	Domain       string   `json:"domain"`
	// Addons lists the add-ons that were enabled with `up --with`. The settings in the cluster take precedence.
	Addons []string `json:"with,omitempty"`
	// Endpoint is the stable address of the control plane (`init --control-plane-endpoint`), if one
	// is set.
	Endpoint string `json:"controlPlaneEndpoint,omitempty"`
}

// Load reads the configuration saved in the data directory of l. It returns false if there is none.
func Load(l layout.Node) (Cluster, bool, error) {
	var id Cluster
	data, err := os.ReadFile(File(l))
	if errors.Is(err, os.ErrNotExist) {
		return id, false, nil
	}
	if err != nil {
		return id, false, fmt.Errorf("reading the cluster configuration: %w", err)
	}
	if err := json.Unmarshal(data, &id); err != nil {
		return id, false, fmt.Errorf("reading the cluster configuration %s: %w", File(l), err)
	}
	return id, true, nil
}

// File returns the path of the file in which the configuration of the cluster is saved, in the data directory of l.
func File(l layout.Node) string { return filepath.Join(l.Data, "cluster.json") }

// New returns the configuration of a new cluster: that which is requested, with defaults for unset fields. The default
// node name is the hostname. Default CIDRs do not overlap with routes of the host.
func New(requested Cluster) (Cluster, error) {
	id := requested
	if id.NodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			return id, fmt.Errorf("getting the hostname: %w", err)
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

// CheckNodeName returns an error if no Node can have the name. The name must also be a valid label
// value, because it is the value of the label kubernetes.io/hostname. A hostname can be too long
// for that: Linux allows 64 characters, a label value 63.
func CheckNodeName(name string) error {
	problems := validation.IsDNS1123Subdomain(name)
	if len(problems) == 0 {
		problems = validation.IsValidLabelValue(name)
	}
	if len(problems) == 0 {
		return nil
	}
	return command.ConfigError(fmt.Errorf("invalid node name %q: %s; set another name with --node-name", name, strings.Join(problems, ", ")))
}

// ChooseRanges validates the pod and Service CIDRs that are set, and chooses the others. Chosen CIDRs have the IP
// families of those that are set, by default IPv4. Chosen IPv4 CIDRs do not overlap with routes, the routes of the
// host.
func (id *Cluster) ChooseRanges(routes []netip.Prefix) error {
	set := id.PodCIDRs
	if len(set) == 0 {
		set = id.ServiceCIDRs
	}
	families, err := familiesOf(set)
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
		{&id.PodCIDRs, "pod", "10.244.0.0/16", "10.%d.0.0/16", 245, "fd00:10:244::/56"},
		{&id.ServiceCIDRs, "service", "10.96.0.0/16", "10.%d.0.0/16", 97, "fd00:10:96::/112"},
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
			return command.ConfigError(fmt.Errorf("specify one %s CIDR, or one of each IP family: %s", r.what, strings.Join(*r.ranges, ",")))
		}
		if has[0] != families[0] {
			return command.ConfigError(fmt.Errorf("the pod CIDRs and the service CIDRs must start with the same IP family: %s and %s",
				strings.Join(id.PodCIDRs, ","), strings.Join(id.ServiceCIDRs, ",")))
		}
	}
	return nil
}

// Save writes the configuration to the file of File and syncs it to disk.
func (id Cluster) Save(l layout.Node) error {
	data, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the cluster configuration: %w", err)
	}
	if err := atomicfile.Write(atomicfile.File{Path: File(l), Data: append(data, '\n'), Mode: 0o644}); err != nil {
		return fmt.Errorf("saving the cluster configuration: %w", err)
	}
	return nil
}

// HostRoutes returns the destinations of the host's routes, with which CIDRs of a new cluster must not overlap. It
// omits default routes, and routes of this program's links, which a crashed cluster may have left behind.
func HostRoutes() ([]netip.Prefix, error) {
	routes, err := netlinkutil.Routes(netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("listing the routes of the host: %w", err)
	}
	var prefixes []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil || r.Dst.IP == nil {
			continue
		}
		prefix := netlinkutil.Prefix(r.Dst)
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

// FreeRange returns usual if no route overlaps with it. Otherwise it returns the first CIDR without
// overlap that pattern yields for the numbers from, from+1, and so on, up to 255.
func FreeRange(routes []netip.Prefix, usual, pattern string, from int) (string, error) {
	overlaps := func(cidr string) bool {
		prefix := netip.MustParsePrefix(cidr)
		for _, r := range routes {
			if r.Overlaps(prefix) {
				return true
			}
		}
		return false
	}
	if !overlaps(usual) {
		return usual, nil
	}
	for n := from; n < 256; n++ {
		if cidr := fmt.Sprintf(pattern, n); !overlaps(cidr) {
			return cidr, nil
		}
	}
	return "", command.PreflightError(errors.New("all default CIDRs for pods or services overlap with routes of this host; set --cluster-cidr and --service-cidr"))
}

// EnableAddons adds add-ons to the configuration, without duplicates. It returns a configuration error for an unknown
// name.
func (id *Cluster) EnableAddons(addons []string) error {
	for _, name := range addons {
		if _, err := manifests.FindAddon(name); err != nil {
			return command.ConfigError(fmt.Errorf("--with: %w", err))
		}
		if !slices.Contains(id.Addons, name) {
			id.Addons = append(id.Addons, name)
		}
	}
	return nil
}

// FirstPodCIDRs returns the pod CIDRs that the first Node gets, separated by commas: the first /24 or, for IPv6, /64 of
// each pod CIDR of the cluster, or the whole CIDR if that is smaller.
func FirstPodCIDRs(cluster []string) (string, error) {
	var parts []string
	for _, text := range cluster {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return "", fmt.Errorf("invalid CIDR %q: %w", text, err)
		}
		size := 24
		if prefix.Addr().Is6() {
			size = 64
		}
		parts = append(parts, netip.PrefixFrom(prefix.Masked().Addr(), max(size, prefix.Bits())).String())
	}
	return strings.Join(parts, ","), nil
}

// NthAddress returns the n-th address of a CIDR, counted from its base address, which is number 0. It returns an error
// if the CIDR has no such address.
func NthAddress(cidr string, n int) (netip.Addr, error) {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("invalid CIDR %q: %w", cidr, err)
	}
	addr := prefix.Masked().Addr()
	for range n {
		addr = addr.Next()
	}
	if !prefix.Contains(addr) {
		return netip.Addr{}, fmt.Errorf("CIDR %s is too small", cidr)
	}
	return addr, nil
}
