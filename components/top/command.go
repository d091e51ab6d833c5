// Package top shows the resource usage of nodes and pods on a terminal, with its history.
package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"

	"hyperkube/internal/credentials/kubeconfig"
	"hyperkube/internal/serving/metricshistory"
)

// options are the flags of the command.
type options struct {
	selection           kubeconfig.Selection
	sort                string
	allNamespaces, once bool
}

// NewCommand returns the `hyperkube top` command.
func NewCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "top [nodes|pods|NAME]",
		Short: "Show the resource usage of nodes and pods with its history",
		Long: `Show the resource usage of nodes and pods with its history.

On a terminal, the view is updated with each sample, every 15 seconds. Press ? for the keys. NAME is a pod of the namespace or a
node, whose metrics of the last hour are shown. With --once, or if the output is not a terminal, the command prints the last sample
and exits.

The cluster must have the add-on metrics of hyperkube, and the user needs the permission to list the resources of the API group
` + metricshistory.Group + `, which the ClusterRoles view, edit and admin include.`,
		Example: `  hyperkube top
  hyperkube top pods -A --sort memory
  hyperkube top web-6b6b8d9c4c-8x2lq --once`,
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: []string{"nodes", "pods"},
		RunE:      func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	f := cmd.Flags()
	o.selection.AddFlags(f)
	f.StringVarP(&o.selection.Namespace, "namespace", "n", "", "Namespace of pods. If empty, that of the context is used.")
	f.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "Show the pods of all namespaces.")
	f.StringVar(&o.sort, "sort", byCPU, "Order of the rows: cpu, memory or name.")
	f.BoolVar(&o.once, "once", false, "Print the last sample as text and exit.")
	return cmd
}

// run shows the view that args select.
func (o *options) run(cmd *cobra.Command, args []string) error {
	if o.sort != byCPU && o.sort != byMemory && o.sort != byName {
		return fmt.Errorf("unknown order %q, use cpu, memory or name", o.sort)
	}
	from, namespace, err := o.connect()
	if err != nil {
		return err
	}
	v := &view{resource: metricshistory.Nodes, namespace: namespace, order: o.sort}
	if o.allNamespaces {
		v.namespace = ""
	}
	if len(args) > 0 {
		switch args[0] {
		case "nodes", "node", "no":
		case "pods", "pod", "po":
			v.resource = metricshistory.Pods
		default:
			if v.detail, err = findObject(cmd.Context(), from, namespace, args[0]); err != nil {
				return err
			}
			v.resource = v.detail.resource
		}
	} else if o.allNamespaces || o.selection.Namespace != "" {
		v.resource = metricshistory.Pods
	}
	out, onTerminal := cmd.OutOrStdout().(*os.File)
	onTerminal = onTerminal && term.IsTerminal(int(out.Fd())) && os.Getenv("TERM") != "dumb"
	if o.once || !onTerminal {
		return printOnce(cmd.Context(), cmd.OutOrStdout(), v, from)
	}
	st := style{glyphs: newGlyphs(usesUTF8(os.Getenv)), color: os.Getenv("NO_COLOR") == ""}
	return runOnTerminal(cmd.Context(), v, from, st)
}

// connect returns the source for the kubeconfig, and the namespace of pods.
func (o *options) connect() (source, string, error) {
	cfg, namespace, err := o.selection.Load("hyperkube-top")
	if err != nil {
		return nil, "", err
	}
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, "", fmt.Errorf("creating the API client: %w", err)
	}
	return apiSource{client.RESTClient()}, namespace, nil
}

// usesUTF8 reports whether the locale in the environment uses UTF-8. Without a locale, it assumes so.
func usesUTF8(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := strings.ToUpper(getenv(name)); value != "" {
			return strings.Contains(value, "UTF-8") || strings.Contains(value, "UTF8")
		}
	}
	return true
}

// findObject returns the pod with the name in the namespace, or else the node with the name. It returns an error if there is no
// history of either.
func findObject(ctx context.Context, from source, namespace, name string) (*object, error) {
	_, podErr := from.get(ctx, metricshistory.Pods, namespace, name, metricshistory.HourStep*2)
	if podErr == nil {
		return &object{metricshistory.Pods, namespace, name}, nil
	}
	_, nodeErr := from.get(ctx, metricshistory.Nodes, "", name, metricshistory.HourStep*2)
	if nodeErr == nil {
		return &object{metricshistory.Nodes, "", name}, nil
	}
	if apierrors.IsNotFound(podErr) && apierrors.IsNotFound(nodeErr) {
		return nil, fmt.Errorf("no usage of a pod %q in namespace %s or of a node %q is known. A sample is taken every 15 seconds; `hyperkube addon list` shows whether the add-on metrics is enabled", name, namespace, name)
	}
	return nil, errors.Join(podErr, nodeErr)
}

// printOnce prints the last sample of the objects that the view shows, as a table.
func printOnce(ctx context.Context, out io.Writer, v *view, from source) error {
	s := &screen{view: v, source: from}
	r := s.load(ctx, 0, v)
	if r.err != nil {
		return r.err
	}
	if v.detail != nil {
		return printDetail(out, v.detail, r.items[0])
	}
	s.show(r)
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	if v.resource == metricshistory.Nodes {
		fmt.Fprintln(table, "NAME\tCPU\tCPU%\tMEMORY\tMEMORY%\tDISK\tDISK%\tRECEIVE\tSEND")
	} else {
		fmt.Fprintln(table, "NAMESPACE\tNAME\tCPU\tMEMORY\tRECEIVE\tSEND\tRESTARTS")
	}
	for i := range v.items {
		h := &v.items[i]
		cpu, memory := recent(h, metricshistory.CPU), recent(h, metricshistory.Memory)
		receive, send := formatRate(recent(h, metricshistory.NetworkReceive)), formatRate(recent(h, metricshistory.NetworkTransmit))
		if v.resource == metricshistory.Nodes {
			disk := recent(h, metricshistory.FilesystemUsed)
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", h.Name,
				formatCPU(cpu), formatPercent(cpu, float32(h.Capacity[metricshistory.CPU])),
				formatBytes(memory), formatPercent(memory, float32(h.Capacity[metricshistory.Memory])),
				formatBytes(disk), formatPercent(disk, recent(h, metricshistory.FilesystemCapacity)), receive, send)
			continue
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", h.Namespace, h.Name, formatCPU(cpu), formatBytes(memory), receive, send, formatCount(recent(h, metricshistory.Restarts)))
	}
	return table.Flush()
}

// printDetail prints the newest sample and the maximum of each metric of an object over the last hour.
func printDetail(out io.Writer, o *object, h metricshistory.History) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "METRIC\tNOW\tMAXIMUM")
	for _, c := range charts(o.resource) {
		peak := float32(0)
		for _, value := range h.Series[c.metric].Values {
			peak = max(peak, zeroIfUnknown(value))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", c.title, c.format(recent(&h, c.metric)), c.format(peak))
	}
	return table.Flush()
}
