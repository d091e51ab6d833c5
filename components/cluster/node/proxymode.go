package node

import (
	"github.com/spf13/pflag"

	"hyperkube/internal/base/cloudprovider"
	"hyperkube/internal/host/packetfilter"
)

// RegisterProxyMode adds the flag --proxy-mode, which selects how packet filter rules are written. Without the flag, mode
// is empty, which means packetfilter.Auto.
func RegisterProxyMode(flags *pflag.FlagSet, mode *packetfilter.Mode) {
	flags.StringVar((*string)(mode), "proxy-mode", "", "How the rules of services, the pod network and network policies are written: iptables, nftables, which needs no program, or auto (iptables if it is installed and works, otherwise nftables). Defaults to auto.")
}

// RegisterCloudProvider adds the flag --cloud-provider for the nodes of a cluster.
func RegisterCloudProvider(flags *pflag.FlagSet, s *cloudprovider.Setting) {
	cloudprovider.Register(flags, s, "Set to external if a cloud controller manager initializes the nodes: it sets their addresses and provider IDs, and removes the taint that keeps pods away until then. Load balancers and routes are also its task.")
}
