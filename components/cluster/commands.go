// Package cluster composes all components into clusters, and lists the commands that
// do. Each way to have a cluster is a folder: up is one process for one machine, masters
// is init, join and what goes with them, node is the half that both have, and teardown
// takes either away. What looks at a cluster of any kind is here, a file each.
//
// Below them: certs renews a master's certificates, trust is how machines and masters
// come to believe each other, members changes etcd's membership, localnodes makes the
// network of further nodes on one machine, addons applies DNS and the like. identity,
// preflight, pidlock, progress and command are what all commands need of the machine
// and of whoever typed them.
package cluster

import (
	"github.com/spf13/cobra"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/masters"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/teardown"
	"hyperkube/components/cluster/up"
)

// ExitGeneral is what a command ends with whose error decides nothing else.
const ExitGeneral = command.ExitGeneral

// Command is one command of hyperkube.
type Command struct {
	Name, Short string
	// New makes the command; called when it is wanted.
	New func() *cobra.Command
}

// Commands lists the cluster commands.
func Commands() []Command {
	return []Command{
		{"up", "Start a single-node cluster on this machine", up.New},
		{"init", "Make this machine the master of a new cluster", masters.NewInit},
		{"join", "Make this machine a node of a cluster that init has made", masters.NewJoin},
		{"token", "Manage the tokens with which machines join", masters.NewToken},
		{"certs", "Tell when the certificates of a master end, and renew them", masters.NewCerts},
		{"config", "Print and check configuration files of init and join", masters.NewConfig},
		{"kubeconfig", "Make kubeconfigs of further users", masters.NewKubeconfig},
		{"upgrade", "Bring machines of init and join to the version of this program", masters.NewUpgrade},
		{"node", "Run the node half alone: runtime, kubelet and proxy", node.NewCommand},
		{"stop", "Stop the control plane and the kubelet; pods go on", teardown.NewStop},
		{"down", "Stop everything, pods too, and take back all changes to the host", teardown.NewDown},
		{"reset", "Like down, and delete the cluster's data", teardown.NewReset},
		{"status", "Tell what runs, where, and what is wrong", newStatus},
		{"snapshot", "Save, restore and look at the state of the cluster", newSnapshot},
		{"image", "Import, list, pull and remove images", newImage},
		{"version", "Print the version", newVersion},
	}
}
