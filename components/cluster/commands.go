// Package cluster composes all components into clusters and lists the cluster commands. Each kind
// of cluster has a package: up runs a cluster in one process on one machine, controlplane contains
// init, join and the commands of such clusters, and node runs the components of a node, which both
// use. Package teardown stops and removes clusters of either kind. Commands for clusters of any
// kind are in this package, in one file each.
//
// Other packages: certrenewal renews the certificates of a control plane node, joindiscovery
// establishes trust between a joining machine and the cluster, etcdmembers changes the membership
// of etcd, localnodes creates the network of additional nodes on one machine, addons applies add-ons,
// and applyset applies and prunes sets of objects. The packages clusterconfig, preflight, pidlock, progress and
// command are shared by the commands.
package cluster

import (
	"github.com/spf13/cobra"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/controlplane"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/teardown"
	"hyperkube/components/cluster/up"
)

// ExitGeneral is the exit code of a command whose error has no other exit code.
const ExitGeneral = command.ExitGeneral

// Command is a command of hyperkube, such as `up`: its name, its description, and the function that constructs it.
type Command struct {
	Name, Short string
	// New constructs the command. It is called only for the command that runs, or for help.
	New func() *cobra.Command
}

// Commands returns the commands that manage a cluster on this machine, such as `up`, `init`, `join` and `reset`.
func Commands() []Command {
	return []Command{
		{"up", "Start a local Kubernetes cluster on this machine", up.New},
		{"init", "Set up this machine as the first control plane node of a new cluster", controlplane.NewInit},
		{"join", "Join this machine to a cluster created with init", controlplane.NewJoin},
		{"token", "Manage bootstrap tokens", controlplane.NewToken},
		{"certs", "Check the expiration of certificates and renew them", controlplane.NewCerts},
		{"config", configShort, newConfig},
		{"kubeconfig", "Generate kubeconfig files for additional users", controlplane.NewKubeconfig},
		{"upgrade", "Upgrade a cluster created with init to the version of this binary", controlplane.NewUpgrade},
		{"node", "Run only the node components: container runtime, kubelet and kube-proxy", node.NewCommand},
		{"stop", "Stop the control plane and the kubelet; pods keep running", teardown.NewStop},
		{"down", "Stop the cluster and its pods, and revert all changes to the host", teardown.NewDown},
		{"reset", "Stop the cluster, revert all changes to the host and delete the cluster's data", teardown.NewReset},
		{"status", "Show the status of the cluster on this machine and any problems", newStatus},
		{"check", "Find out why a cluster on this machine does not work, or would not work", newCheck},
		{"support-bundle", "Write logs, objects and the state of the machine to an archive for bug reports", newSupportBundle},
		{"addon", "List, enable and disable add-ons", newAddon},
		{"snapshot", "Save, restore and inspect snapshots of the cluster state", newSnapshot},
		{"image", "Import, list, pull and remove images", newImage},
		{"version", "Print the version", newVersion},
	}
}
