// Package packaging contains the files that packages install beside the program: the systemd unit,
// and the scripts that a package manager runs.
package packaging

import (
	_ "embed"
	"strings"
)

// UnitName is the name of the systemd unit that runs `hyperkube up` as a service.
const UnitName = "hyperkube.service"

// program is the program that hyperkube.service starts.
const program = "/usr/bin/hyperkube"

//go:embed hyperkube.service
var unit string

// Unit returns the systemd unit that runs `hyperkube up` as a service, with the program at path. The
// path must be quoted if it contains special characters, see systemd.service(5).
func Unit(path string) string {
	return strings.Replace(unit, "ExecStart="+program+" ", "ExecStart="+path+" ", 1)
}
