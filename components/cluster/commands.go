// Package cluster composes all components into clusters: up, node, stop, down,
// reset and status of the cluster of this machine, and what goes with them.
// Each command is one file.
package cluster

import "github.com/spf13/cobra"

// Exit codes of all commands.
const (
	ExitGeneral   = 1
	ExitPreflight = 2
	ExitConfig    = 3
)

// Command is one command of hyperkube.
type Command struct {
	Name, Short string
	// New makes the command; called when it is wanted.
	New func() *cobra.Command
}

// Commands lists the cluster commands.
func Commands() []Command {
	return []Command{
		{"up", "Start a single-node cluster on this machine", newUp},
		{"init", "Make this machine the master of a new cluster", newInit},
		{"join", "Make this machine a node of a cluster that init has made", newJoin},
		{"token", "Manage the tokens with which machines join", newToken},
		{"certs", "Tell when the certificates of a master end, and renew them", newCerts},
		{"config", "Print and check configuration files of init and join", newConfig},
		{"node", "Run the node half alone: runtime, kubelet and proxy", newNodeCommand},
		{"stop", "Stop the control plane and the kubelet; pods go on", newStop},
		{"down", "Stop everything, pods too, and take back all changes to the host", newDown},
		{"reset", "Like down, and delete the cluster's data", newReset},
		{"status", "Tell what runs, where, and what is wrong", newStatus},
		{"snapshot", "Save, restore and look at the state of the cluster", newSnapshot},
		{"image", "Import, list, pull and remove images", newImage},
		{"version", "Print the version", newVersion},
	}
}

// codedError is an error that decides the exit code.
type codedError struct {
	error
	code int
}

// ExitCode is what the process ends with.
func (e codedError) ExitCode() int { return e.code }

func (e codedError) Unwrap() error { return e.error }
