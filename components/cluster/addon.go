package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"hyperkube/components/cluster/addons"
	"hyperkube/components/cluster/applyset"
	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
	"hyperkube/internal/client"
	"hyperkube/manifests"
)

// addonOptions are the flags of `addon` and its subcommands.
type addonOptions struct {
	root, kubeconfig string
	// wait is how long `enable` and `disable` wait until the change is applied; 0 means not at all.
	wait   time.Duration
	output command.Output
}

// newAddon returns the command `addon`, which lists, enables and disables add-ons.
func newAddon() *cobra.Command {
	o := &addonOptions{}
	cmd := &cobra.Command{Use: "addon", Short: "List, enable and disable add-ons"}
	command.RootFlag(cmd.PersistentFlags(), &o.root)
	cmd.PersistentFlags().StringVar(&o.kubeconfig, "kubeconfig", "", "Path to a kubeconfig file. If empty, that of the administrator on this machine.")
	with := func(run func(ctx context.Context, out io.Writer, c *addonCluster, args []string) error) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, args []string) error {
			c, err := o.connect(cmd.Context())
			if err != nil {
				return err
			}
			return run(cmd.Context(), cmd.OutOrStdout(), c, args)
		}
	}
	change := func(name, short string, enabled bool) *cobra.Command {
		sub := &cobra.Command{
			Use: name + " NAME...", Short: short, Args: cobra.MinimumNArgs(1), ValidArgs: manifests.AddonNames(),
			RunE: func(cmd *cobra.Command, args []string) error {
				if _, err := addons.Check(args, enabled); err != nil {
					return command.ConfigError(err)
				}
				return with(func(ctx context.Context, out io.Writer, c *addonCluster, args []string) error {
					return c.change(ctx, out, enabled, o.wait, args)
				})(cmd, args)
			},
		}
		sub.Flags().DurationVar(&o.wait, "timeout", time.Minute, "How long to wait until the change is applied. 0 means not at all.")
		return sub
	}
	list := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the add-ons", Args: cobra.NoArgs, RunE: with(func(ctx context.Context, out io.Writer, c *addonCluster, _ []string) error {
		infos, err := c.infos(ctx, manifests.Addons(), false)
		if err != nil {
			return err
		}
		return o.output.Write(out, infos, func(w io.Writer) error { return printAddons(w, infos) })
	})}
	o.output.Flag(list)
	status := &cobra.Command{
		Use: "status [NAME]", Short: "Show the objects of add-ons and any problems", Args: cobra.MaximumNArgs(1), ValidArgs: manifests.AddonNames(),
		RunE: with(func(ctx context.Context, out io.Writer, c *addonCluster, args []string) error {
			selected := manifests.Addons()
			if len(args) > 0 {
				var err error
				if selected, err = addons.Check(args, true); err != nil {
					return command.ConfigError(err)
				}
			}
			infos, err := c.infos(ctx, selected, true)
			if err != nil {
				return err
			}
			if err := o.output.Write(out, infos, func(w io.Writer) error { return printAddonStatus(w, infos) }); err != nil {
				return err
			}
			return problemsOf(infos)
		}),
	}
	o.output.Flag(status)
	cmd.AddCommand(list, change("enable", "Enable add-ons", true), change("disable", "Disable add-ons and delete their objects", false), status)
	return cmd
}

// connect returns the cluster of --kubeconfig or, without the flag, the cluster of this machine, which requires root
// privileges.
func (o *addonOptions) connect(ctx context.Context) (*addonCluster, error) {
	path := o.kubeconfig
	if path == "" {
		if err := command.RequireRoot(); err != nil {
			return nil, err
		}
		path = clusterconfig.AdminKubeconfig(command.Layout(o.root))
	}
	clients, err := client.FromKubeconfig(path, addons.FieldManager)
	if err != nil {
		return nil, err
	}
	values, managed, err := addons.DiscoverValues(ctx, clients.Kube)
	if err != nil {
		return nil, err
	}
	return &addonCluster{clients: clients, reconciler: addons.NewReconciler(clients, values), managed: managed}, nil
}

// addonCluster is a cluster whose add-ons are shown or changed.
type addonCluster struct {
	clients    *client.Clients
	reconciler *addons.Reconciler
	// managed reports whether the main process of the cluster applies changes of the settings. Otherwise the
	// command applies them.
	managed bool
}

// change enables or disables add-ons in the settings of the cluster, and waits until this is applied, for each add-on
// no longer than timeout. If that fails, the settings are already changed, and the error says so.
func (c *addonCluster) change(ctx context.Context, out io.Writer, enabled bool, timeout time.Duration, names []string) error {
	selected, err := addons.Check(names, enabled)
	if err != nil {
		return err
	}
	if err := addons.ChangeSettings(ctx, c.clients.Kube, enabled, names...); err != nil {
		return err
	}
	done := map[bool]string{true: "enabled", false: "disabled"}[enabled]
	for _, a := range selected {
		if err := c.complete(ctx, a, enabled, timeout); err != nil {
			return fmt.Errorf("add-on %s is %s in the settings, but not yet in the cluster: %w; see `hyperkube addon status %s`", a.Name, done, err, a.Name)
		}
		fmt.Fprintf(out, "%s %s\n", a.Name, done)
		if service, err := c.reconciler.ReplacedBy(ctx, a); err == nil && service != "" && enabled {
			fmt.Fprintf(out, "%s has no effect, because Service %s serves its API\n", a.Name, service)
		}
	}
	return nil
}

// complete applies a changed setting in a cluster of `init`. In a cluster of `up`, it waits until the main process has
// applied it; it does not wait if timeout is 0 or if another server replaces the add-on.
func (c *addonCluster) complete(ctx context.Context, a manifests.Addon, enabled bool, timeout time.Duration) error {
	if !c.managed {
		_, err := c.reconciler.Reconcile(ctx, a, enabled)
		return err
	}
	if timeout <= 0 {
		return nil
	}
	if service, err := c.reconciler.ReplacedBy(ctx, a); err != nil || service != "" {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errors.New("timed out"))
	defer cancel()
	return applyset.WaitFor(ctx, c.clients.Kube, addons.SetOf(a), enabled)
}

// printAddons prints the table of `addon list`.
func printAddons(out io.Writer, infos []addonInfo) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "NAME\tENABLED\tSTATUS\tDESCRIPTION")
	for _, a := range infos {
		fmt.Fprintf(w, "%s\t%v\t%s\t%s\n", a.Name, a.Enabled, a.Status, a.Description)
	}
	return w.Flush()
}

// printAddonStatus prints the objects and problems of add-ons.
func printAddonStatus(out io.Writer, infos []addonInfo) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "ADD-ON\tOBJECT\tSTATUS")
	for _, a := range infos {
		fmt.Fprintf(w, "%s\t\t%s\n", a.Name, a.Status)
		for _, obj := range a.Objects {
			fmt.Fprintf(w, "\t%s\t%s\n", obj.Object, obj.Status)
		}
		for _, p := range a.Problems {
			fmt.Fprintf(w, "\tproblem: %s\t\n", strings.ReplaceAll(p, "\n", " "))
		}
	}
	return w.Flush()
}

// problemsOf returns an error with the number of problems of all add-ons, or nil if there are none.
func problemsOf(infos []addonInfo) error {
	n := 0
	for _, a := range infos {
		n += len(a.Problems)
	}
	if n == 0 {
		return nil
	}
	return command.WithCode(fmt.Errorf("problems found: %d", n), command.ExitGeneral)
}
