package node

import (
	"github.com/spf13/pflag"

	"hyperkube/internal/host/packetfilter"
)

// RegisterProxyMode adds the flag --proxy-mode, which selects how packet filter rules are written. Without the flag, mode
// is empty, which means packetfilter.Auto.
func RegisterProxyMode(flags *pflag.FlagSet, mode *packetfilter.Mode) {
	flags.StringVar((*string)(mode), "proxy-mode", "", "How the rules of services, the pod network and network policies are written: iptables, nftables, which needs no program, or auto (iptables if it is installed and works, otherwise nftables). Defaults to auto.")
}
