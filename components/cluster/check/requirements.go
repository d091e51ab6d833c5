package check

import (
	"context"
	"strings"

	"hyperkube/components/cluster/preflight"
)

// requirementChecks returns the checks of package preflight, which `up`, `init` and `join` run as well. A check reports
// the problems whose names begin with its prefix.
func requirementChecks() []check {
	list := []check{}
	for _, r := range []struct{ name, prefix string }{
		{"overlayfs", "SystemVerification"},
		{"programs", "FileExisting-"},
		{"memory", "Mem"},
		{"disk-space", "DiskSpace"},
		{"ports", "Port-"},
		{"other-cluster-files", "FileAvailable-"},
	} {
		list = append(list, check{r.name, func(_ context.Context, m *Machine, o *outcome) {
			reportProblems(o.errorf, m.Probes.Requirements(), r.prefix)
		}})
	}
	return append(list, check{"swap", func(_ context.Context, m *Machine, o *outcome) {
		reportProblems(o.warnf, preflight.Warnings(m.read("/proc/swaps")), "Swap")
	}})
}

// reportProblems calls report for each problem whose name begins with prefix.
func reportProblems(report func(fix, format string, args ...any), problems []preflight.Problem, prefix string) {
	for _, p := range problems {
		if !strings.HasPrefix(p.Check, prefix) {
			continue
		}
		cause, fix := p.Split()
		report(fix, "%s", cause)
	}
}

// isMissingProgram reports whether p is the problem that a program is not installed.
func isMissingProgram(p preflight.Problem) bool { return strings.HasPrefix(p.Check, "FileExisting-") }
