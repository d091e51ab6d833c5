// Package packaging contains the files that packages install beside the program: the systemd unit,
// and the scripts that a package manager runs.
package packaging

import (
	_ "embed"
	"strings"
)

// UnitName is the name of the systemd unit that runs `hyperkube up` as a service.
const UnitName = "hyperkube.service"

// Command is the command line of the unit in packages. systemd replaces the variable by the arguments that the
// administrator has set in /etc/hyperkube/service.env.
const Command = "/usr/bin/hyperkube up --foreground --no-kubeconfig $HYPERKUBE_UP_ARGS"

//go:embed hyperkube.service
var unit string

// Unit returns the systemd unit that runs `hyperkube up` as a service with a command line, in which special
// characters must be quoted; see systemd.service(5).
func Unit(command string) string {
	return strings.Replace(unit, "ExecStart="+Command+"\n", "ExecStart="+command+"\n", 1)
}
