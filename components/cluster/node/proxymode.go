package node

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"hyperkube/internal/base/cloudprovider"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/packetfilter"
)

// RegisterProxyMode adds the flag --proxy-mode, which selects how packet filter rules are written. Without the flag, mode
// is empty, which means packetfilter.Auto.
func RegisterProxyMode(flags *pflag.FlagSet, mode *packetfilter.Mode) {
	flags.StringVar((*string)(mode), "proxy-mode", "", "How the rules of services, the pod network and network policies are written: iptables, nftables, which needs no program, or auto (iptables if it is installed and works, otherwise nftables). Defaults to auto.")
}

// TablesJournal is the name of the journal of the tables that iptables creates. It must be reverted after all others,
// whose rules are in these tables.
const TablesJournal = "tables"

// SelectPacketFilter returns how packet filter rules are written with the setting of --proxy-mode. It records the
// changes of this to the host.
func SelectPacketFilter(ctx context.Context, l layout.Node, setting packetfilter.Mode) (packetfilter.Mode, error) {
	journal, err := hostjournal.Open(l.Journal(TablesJournal))
	if err != nil {
		return "", err
	}
	defer journal.Close()
	mode, err := setting.Select(ctx, journal)
	if err != nil {
		return "", fmt.Errorf("--proxy-mode: %w", err)
	}
	return mode, nil
}

// RegisterCloudProvider adds the flag --cloud-provider for the nodes of a cluster.
func RegisterCloudProvider(flags *pflag.FlagSet, s *cloudprovider.Setting) {
	cloudprovider.Register(flags, s, "Set to external if a cloud controller manager initializes the nodes: it sets their addresses and provider IDs, and removes the taint that keeps pods away until then. Load balancers and routes are also its task.")
}
