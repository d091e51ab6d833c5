package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"hyperkube/internal/host/packetfilter"
)

// defaults returns kube-proxy's defaults for the settings that this proxy supports.
// https://kubernetes.io/docs/reference/config-api/kube-proxy-config.v1alpha1/
func defaults() *kubeproxyv1alpha1.KubeProxyConfiguration {
	localhost := true
	c := &kubeproxyv1alpha1.KubeProxyConfiguration{
		HealthzBindAddress: withPort("0.0.0.0", portHealthz), MetricsBindAddress: withPort("127.0.0.1", portMetrics),
	}
	c.IPTables.LocalhostNodePorts = &localhost
	c.IPTables.SyncPeriod = metav1.Duration{Duration: 30 * time.Second}
	c.IPTables.MinSyncPeriod = metav1.Duration{Duration: minSyncIPTables}
	return c
}

// decode parses a KubeProxyConfiguration into c. Unknown fields are an error.
func decode(data []byte, c *kubeproxyv1alpha1.KubeProxyConfiguration) error {
	if err := yaml.UnmarshalStrict(data, c); err != nil {
		return err
	}
	if c.Kind != "KubeProxyConfiguration" || c.APIVersion != kubeproxyv1alpha1.SchemeGroupVersion.String() {
		return fmt.Errorf("expected KubeProxyConfiguration of %s, not %s of %s", kubeproxyv1alpha1.SchemeGroupVersion, c.Kind, c.APIVersion)
	}
	return nil
}

// apply sets the fields of cfg from the configuration c, except conntrack settings and the API
// client. It returns an error if a setting is invalid or not supported by this proxy.
func apply(c *kubeproxyv1alpha1.KubeProxyConfiguration, cfg *Config) error {
	if err := packetfilter.Mode(c.Mode).Validate(); err != nil {
		return fmt.Errorf("mode: %w", err)
	}
	switch c.DetectLocalMode {
	case "", "ClusterCIDR":
	case "NodeCIDR":
		cfg.DetectLocalMode = LocalByNodeCIDR
	case "BridgeInterface":
		cfg.DetectLocalMode, cfg.PodLink = LocalByBridge, c.DetectLocal.BridgeInterface
		if cfg.PodLink == "" {
			return errors.New("detectLocal.bridgeInterface: Required value: cannot be empty")
		}
	case "InterfaceNamePrefix":
		cfg.DetectLocalMode, cfg.PodLink = LocalByLinkPrefix, c.DetectLocal.InterfaceNamePrefix
		if cfg.PodLink == "" {
			return errors.New("detectLocal.interfaceNamePrefix: Required value: cannot be empty")
		}
	default:
		return fmt.Errorf(`detectLocalMode: Unsupported value: %q: supported values: "BridgeInterface", "ClusterCIDR", "InterfaceNamePrefix", "NodeCIDR", ""`, c.DetectLocalMode)
	}
	if err := checkConntrack(&c.Conntrack); err != nil {
		return err
	}
	var err error
	if c.ClusterCIDR != "" {
		if cfg.PodCIDRs, err = parsePrefixes(strings.Split(c.ClusterCIDR, ",")); err != nil {
			return fmt.Errorf("clusterCIDR: %w", err)
		}
	}
	if cfg.NodePortRanges, cfg.NodePortsOnPrimary, err = nodePortRanges(c.NodePortAddresses); err != nil {
		return fmt.Errorf("nodePortAddresses: %w", err)
	}
	if bit := c.IPTables.MasqueradeBit; bit != nil {
		if *bit < 0 || *bit > 31 {
			return fmt.Errorf("iptables.masqueradeBit: %d must be within the range [0, 31]", *bit)
		}
		cfg.MasqueradeMark = 1 << *bit
	}
	cfg.NodeName = c.HostnameOverride
	cfg.MasqueradeAll = c.IPTables.MasqueradeAll
	cfg.LocalhostNodePorts = c.IPTables.LocalhostNodePorts == nil || *c.IPTables.LocalhostNodePorts
	cfg.MinSyncPeriod, cfg.SyncPeriod = c.IPTables.MinSyncPeriod.Duration, c.IPTables.SyncPeriod.Duration
	if packetfilter.Mode(c.Mode) == packetfilter.NFTables || cfg.PacketFilter == packetfilter.NFTables {
		if err := applyNFTables(&c.NFTables, cfg); err != nil {
			return err
		}
	}
	cfg.HealthzAddress, cfg.MetricsAddress = withPort(c.HealthzBindAddress, portHealthz), withPort(c.MetricsBindAddress, portMetrics)
	cfg.Profiling = c.EnableProfiling
	return nil
}

// applyNFTables sets the fields of cfg that the section nftables of the configuration specifies. Zero values keep what
// cfg contains.
func applyNFTables(c *kubeproxyv1alpha1.KubeProxyNFTablesConfiguration, cfg *Config) error {
	if bit := c.MasqueradeBit; bit != nil {
		if *bit < 0 || *bit > 31 {
			return fmt.Errorf("nftables.masqueradeBit: %d must be within the range [0, 31]", *bit)
		}
		cfg.MasqueradeMark = 1 << *bit
	}
	cfg.MasqueradeAll = cfg.MasqueradeAll || c.MasqueradeAll
	if cfg.MinSyncPeriod == minSyncIPTables { // the default, not a setting of the section iptables
		cfg.MinSyncPeriod = minSyncNFTables
	}
	cfg.MinSyncPeriod = cmp.Or(c.MinSyncPeriod.Duration, cfg.MinSyncPeriod)
	cfg.SyncPeriod = cmp.Or(c.SyncPeriod.Duration, cfg.SyncPeriod)
	return nil
}

// portHealthz and portMetrics are the default ports of the health and metrics addresses, as in upstream.
const (
	portHealthz = 10256
	portMetrics = 10249
)

// withPort appends a port to address if this is an IP address without a port. It returns any other
// string unchanged.
func withPort(address string, port int32) string {
	if _, err := netip.ParseAddr(address); err != nil {
		return address
	}
	return net.JoinHostPort(address, strconv.Itoa(int(port)))
}

// effectiveConfig returns cfg as a KubeProxyConfiguration, for /configz. It is used if the node
// process runs the proxy, which then has no configuration file.
func effectiveConfig(cfg *Config) *kubeproxyv1alpha1.KubeProxyConfiguration {
	c := defaults()
	c.Kind, c.APIVersion = "KubeProxyConfiguration", kubeproxyv1alpha1.SchemeGroupVersion.String()
	c.HostnameOverride, c.EnableProfiling, c.Mode = cfg.NodeName, cfg.Profiling, kubeproxyv1alpha1.ProxyMode(cfg.PacketFilter)
	c.HealthzBindAddress, c.MetricsBindAddress = cfg.HealthzAddress, cfg.MetricsAddress
	c.ClusterCIDR = strings.Join(texts(cfg.PodCIDRs), ",")
	switch cfg.DetectLocalMode {
	case LocalByClusterCIDR:
		c.DetectLocalMode = "ClusterCIDR"
	case LocalByNodeCIDR:
		c.DetectLocalMode = "NodeCIDR"
	case LocalByBridge:
		c.DetectLocalMode, c.DetectLocal.BridgeInterface = "BridgeInterface", cfg.PodLink
	case LocalByLinkPrefix:
		c.DetectLocalMode, c.DetectLocal.InterfaceNamePrefix = "InterfaceNamePrefix", cfg.PodLink
	}
	c.NodePortAddresses = texts(cfg.NodePortRanges)
	if cfg.NodePortsOnPrimary {
		c.NodePortAddresses = append(c.NodePortAddresses, "primary")
	}
	if cfg.MasqueradeMark != 0 {
		bit := int32(bits.TrailingZeros32(cfg.MasqueradeMark))
		c.IPTables.MasqueradeBit = &bit
	}
	c.IPTables.MasqueradeAll, c.IPTables.LocalhostNodePorts = cfg.MasqueradeAll, &cfg.LocalhostNodePorts
	if cfg.SyncPeriod > 0 {
		c.IPTables.SyncPeriod.Duration = cfg.SyncPeriod
	}
	if cfg.MinSyncPeriod > 0 {
		c.IPTables.MinSyncPeriod.Duration = cfg.MinSyncPeriod
	}
	c.Conntrack = completeConntrack(cfg.Conntrack)
	return c
}

func texts(list []netip.Prefix) []string {
	var out []string
	for _, p := range list {
		out = append(out, p.String())
	}
	return out
}

// nodePortRanges parses the setting nodePortAddresses: CIDRs and the keywords of upstream. primary
// is true if the list contains "primary", the node's own addresses, which are not known until the
// Node is read.
func nodePortRanges(list []string) (ranges []netip.Prefix, primary bool, err error) {
	for _, text := range list {
		words := []string{text}
		switch text {
		case "primary":
			primary, words = true, nil
		case "localhost":
			words = []string{"127.0.0.0/8", "::1/128"}
		case "all":
			words = []string{"0.0.0.0/0", "::/0"}
		}
		some, err := parsePrefixes(words)
		if err != nil {
			return nil, false, err
		}
		ranges = append(ranges, some...)
	}
	return ranges, primary, nil
}
