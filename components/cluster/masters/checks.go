package masters

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"hyperkube/components/cluster/preflight"
	"hyperkube/internal/layout"
)

// ignored are the checks whose problems do not keep a machine from being a master or a node.
type ignored []string

// register adds kubeadm's flag.
func (i *ignored) register(f *pflag.FlagSet) {
	f.StringSliceVar((*[]string)(i), "ignore-preflight-errors", nil, "Checks whose problems are only told, such as Port-10250, DiskSpace or all.")
}

// has tells whether a check is among them.
func (i ignored) has(check string) bool {
	return slices.ContainsFunc(i, func(name string) bool { return strings.EqualFold(name, check) || strings.EqualFold(name, "all") })
}

// check looks whether this machine may become a master or a node, and tells out what is
// wrong of what is ignored, by the flag or by a file.
func (i ignored) check(out io.Writer, l layout.Node, ports []int, file []string) error {
	return preflight.CheckBut(l, ports, slices.Concat(file, i), warning(out))
}

// warning tells what a check has found that stands in nobody's way.
func warning(out io.Writer) func(problem error) {
	return func(problem error) { fmt.Fprintf(out, "\t[WARNING %s]: %v\n", preflight.Name(problem), problem) }
}
