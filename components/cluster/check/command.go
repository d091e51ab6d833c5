package check

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"hyperkube/components/cluster/command"
	"hyperkube/internal/host/layout"
)

// Exit codes of the command. They differ from those of other commands, so that scripts can distinguish warnings.
const (
	exitWarnings = 1
	exitErrors   = 2
)

// New returns the command `check`. start returns the command that starts the cluster with the paths l.
func New(start func(l layout.Node) string) *cobra.Command {
	var root string
	var form command.Output
	var verbose bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Find out why a cluster on this machine does not work, or would not work",
		Long: "Find out why a cluster on this machine does not work, or would not work, and how to fix it: kernel, control groups,\n" +
			"kernel parameters, disks, clock, network, DNS, firewalls, certificates, etcd, images, other clusters and leaked objects.\n" +
			"It takes less than five seconds, and leaves nothing behind.\n\n" +
			"The exit code is 0 if there are no findings, 1 if there are only warnings, and 2 if there is an error.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := command.RequireRoot(); err != nil {
				return err
			}
			l := command.Layout(root)
			report := Run(cmd.Context(), Host(l, start(l)))
			if err := form.Write(cmd.OutOrStdout(), report, func(w io.Writer) error { return report.print(w, verbose) }); err != nil {
				return err
			}
			return report.err()
		},
	}
	command.RootFlag(cmd.Flags(), &root)
	form.Flag(cmd)
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "Also print the checks that passed and those that do not apply.")
	return cmd
}

// err returns an error with the exit code of the command; nil if there are no findings.
func (r *Report) err() error {
	switch {
	case r.Errors > 0:
		return command.WithCode(fmt.Errorf("%s found", r.counts()), exitErrors)
	case r.Warnings > 0:
		return command.WithCode(fmt.Errorf("%s found", r.counts()), exitWarnings)
	}
	return nil
}

// counts returns the numbers of errors and warnings as text.
func (r *Report) counts() string {
	var parts []string
	for _, c := range []struct {
		n    int
		what string
	}{{r.Errors, "error"}, {r.Warnings, "warning"}} {
		switch {
		case c.n == 1:
			parts = append(parts, "1 "+c.what)
		case c.n > 1:
			parts = append(parts, fmt.Sprintf("%d %ss", c.n, c.what))
		}
	}
	if len(parts) == 0 {
		return "no problem"
	}
	return strings.Join(parts, " and ")
}

// print writes the findings as a table, each with its fix in the line below. With verbose, it adds the other checks.
func (r *Report) print(w io.Writer, verbose bool) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(r.Findings) > 0 || verbose {
		fmt.Fprintln(table, "RESULT\tCHECK\tCAUSE AND FIX")
	}
	for _, f := range r.Findings {
		fmt.Fprintf(table, "%s\t%s\t%s\n", f.Severity, f.Check, f.Cause)
		if f.Fix != "" {
			fmt.Fprintf(table, "\t\tFix: %s\n", f.Fix)
		}
	}
	if verbose {
		for _, s := range r.Skipped {
			fmt.Fprintf(table, "skipped\t%s\t%s\n", s.Check, s.Reason)
		}
		for _, name := range r.Passed {
			fmt.Fprintf(table, "passed\t%s\n", name)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(r.Findings) == 0 {
		_, err := fmt.Fprintf(w, "no problems found: %d checks passed, %d do not apply\n", len(r.Passed), len(r.Skipped))
		return err
	}
	return nil
}
