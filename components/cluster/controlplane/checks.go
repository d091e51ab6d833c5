package controlplane

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"hyperkube/components/cluster/preflight"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/packetfilter"
)

// ignoredChecks lists the preflight checks whose errors are reported as warnings.
type ignoredChecks []string

// register adds kubeadm's flag --ignore-preflight-errors to f.
func (i *ignoredChecks) register(f *pflag.FlagSet) {
	f.StringSliceVar((*[]string)(i), "ignore-preflight-errors", nil, "A list of checks whose errors will be shown as warnings. Example: 'Port-10250,DiskSpace'. Value 'all' ignores errors from all checks.")
}

// has reports whether errors of the check are ignored, because the list contains the check or "all".
func (i ignoredChecks) has(check string) bool {
	return slices.ContainsFunc(i, func(name string) bool { return strings.EqualFold(name, check) || strings.EqualFold(name, "all") })
}

// check runs the preflight checks of this machine. Errors of checks that are ignored by the flag or
// by the configuration file are printed to out as warnings. mode is how packet filter rules are written.
func (i ignoredChecks) check(out io.Writer, l layout.Node, ports []int, file []string, mode packetfilter.Mode) error {
	return preflight.CheckIgnoring(l, ports, mode, slices.Concat(file, i), printWarning(out))
}

// printWarning returns a function that prints the error of an ignored check as a warning.
func printWarning(out io.Writer) func(problem error) {
	return func(problem error) { fmt.Fprintf(out, "\t[WARNING %s]: %v\n", preflight.CheckName(problem), problem) }
}
