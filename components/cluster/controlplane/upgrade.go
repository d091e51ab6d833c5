package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/preflight"
	"hyperkube/components/cluster/progress"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/base/version"
	"hyperkube/internal/host/layout"
	"hyperkube/manifests"
)

// NewUpgrade returns the command `upgrade`, which upgrades a cluster that init has created to the version of this
// program.
func NewUpgrade() *cobra.Command {
	cmd := &cobra.Command{
		Use: "upgrade", Short: "Upgrade a cluster created with init to the version of this binary", Args: cobra.NoArgs,
		Long: "Upgrade a cluster created with init to the version of this binary. Install the new binary on each machine.\n" +
			"Run `hyperkube upgrade apply` on the control plane node of init, and then `hyperkube upgrade node` on all other machines,\n" +
			"control plane nodes first, one after the other. Pods keep running.",
	}
	o := &upgrade{}
	f := cmd.PersistentFlags()
	command.RootFlag(f, &o.root)
	f.BoolVarP(&o.verbose, "verbose", "v", false, "Also log debug messages.")
	f.BoolVar(&o.dryRun, "dry-run", false, "Don't apply any changes; just output what would be done.")
	o.ignored.register(f)
	apply := &cobra.Command{
		Use: "apply [VERSION]", Short: "Upgrade the first control plane node and the configuration in the cluster", Args: cobra.MaximumNArgs(1),
		RunE: o.command(o.apply),
	}
	apply.Flags().BoolP("yes", "y", false, "Perform the upgrade and do not prompt for confirmation (non-interactive mode). There is no prompt without this flag either.")
	around := 3 // lines, as in kubeadm
	diff := &cobra.Command{
		Use: "diff [VERSION]", Short: "Show what differences would be applied to existing static pod manifests", Args: cobra.MaximumNArgs(1),
		RunE: o.command(func(_ context.Context, out io.Writer, l layout.Node) error { return o.diff(out, l, around) }),
	}
	diff.Flags().IntVarP(&around, "context-lines", "c", around, "How many lines of context in the diff.")
	joined := &cobra.Command{
		Use: "node", Short: "Upgrade a node that has joined the cluster", Args: cobra.NoArgs,
		RunE: o.command(o.node),
	}
	for _, c := range []*cobra.Command{apply, joined} {
		c.Flags().StringVar(&o.patches, "patches", "", "Path to a directory that contains patches of static pod manifests, for this and later upgrades. If not set, the directory of init or join is used.")
	}
	cmd.AddCommand(
		apply,
		diff,
		&cobra.Command{
			Use: "plan [VERSION]", Short: "Check whether the cluster can be upgraded to the version of this program", Args: cobra.MaximumNArgs(1),
			RunE: o.command(plan),
		},
		joined,
	)
	return cmd
}

// upgrade contains the flags of `upgrade` and its subcommands, which are its methods.
type upgrade struct {
	root    string
	verbose bool
	dryRun  bool
	ignored ignoredChecks
	// patches is a new directory of patches of the static pods. If it is empty, the stored
	// directory is used.
	patches string
}

// command returns a run function for a subcommand of `upgrade`: it requires root privileges, refuses a version
// argument that is not the version of this program, and then calls run.
func (o *upgrade) command(run func(ctx context.Context, out io.Writer, l layout.Node) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := command.RequireRoot(); err != nil {
			return err
		}
		if len(args) > 0 {
			if err := checkTargetVersion(args[0]); err != nil {
				return command.ConfigError(err)
			}
		}
		return run(cmd.Context(), cmd.OutOrStdout(), command.Layout(o.root))
	}
}

// checkTargetVersion returns an error for any version other than that of this program. Build metadata may be omitted.
func checkTargetVersion(requested string) error {
	parsed, err := apiversion.ParseGeneric(requested)
	if err != nil {
		return fmt.Errorf("%q is not a valid version: %w", requested, err)
	}
	own := apiversion.MustParseGeneric(version.Get().GitVersion)
	otherBuild := strings.Contains(requested, "+") && strings.TrimPrefix(requested, "v") != strings.TrimPrefix(version.Get().GitVersion, "v")
	if otherBuild || !parsed.EqualTo(own) {
		return fmt.Errorf("this program is version %s: install version %s and run it", version.Get().GitVersion, requested)
	}
	return nil
}

// checkSkew returns an error for upgrades that the data in etcd and the kubelets do not support: downgrades, and those
// that skip a minor version.
//
// https://kubernetes.io/releases/version-skew-policy/
func checkSkew(from, to string) error {
	a, err := apiversion.ParseGeneric(from)
	if err != nil {
		return fmt.Errorf("parsing version of the cluster %q: %w", from, err)
	}
	b, err := apiversion.ParseGeneric(to)
	if err != nil {
		return fmt.Errorf("parsing version of this program %q: %w", to, err)
	}
	switch {
	case a.Major() != b.Major() || b.Minor() > a.Minor()+1:
		return fmt.Errorf("upgrading from %s to %s skips a minor version: upgrade one minor version at a time", from, to)
	case b.Minor() < a.Minor():
		return fmt.Errorf("downgrading from %s to %s is not supported", from, to)
	}
	return nil
}

// clusterVersion returns a client of the cluster's API server, and the version of the API server. It returns an error
// on a machine that init or join has not set up.
func clusterVersion(l layout.Node) (kubernetes.Interface, string, error) {
	if !clusterconfig.HasJoined(l) {
		return nil, "", command.PreflightError(errors.New("this machine was not set up by init or join: to upgrade a cluster of `hyperkube up`, run `hyperkube up` of the new version"))
	}
	config, err := clientcmd.BuildConfigFromFlags("", clusterconfig.AdminKubeconfig(l))
	if err != nil {
		return nil, "", fmt.Errorf("reading administrator kubeconfig: %w", err)
	}
	config.Timeout = 30 * time.Second
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, "", err
	}
	info, err := kube.Discovery().ServerVersion()
	if err != nil {
		return nil, "", fmt.Errorf("getting version of the cluster: %w", err)
	}
	return kube, info.GitVersion, nil
}

// plan prints the versions of the control plane and of all nodes, and the commands that upgrade them. It returns an
// error if the version skew policy does not allow the upgrade.
func plan(ctx context.Context, out io.Writer, l layout.Node) error {
	kube, from, err := clusterVersion(l)
	if err != nil {
		return err
	}
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	to := version.Get().GitVersion
	if err := printPlan(out, from, to, nodes.Items); err != nil {
		return err
	}
	return checkSkew(from, to)
}

// printPlan prints the version of each machine and the commands to run.
func printPlan(out io.Writer, from, to string, nodes []corev1.Node) error {
	fmt.Fprintf(out, "Cluster version: %s\nTarget version:  %s\n\n", from, to)
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "COMPONENT\tNODE\tCURRENT\tTARGET")
	todo := from != to
	fmt.Fprintf(w, "control plane\t\t%s\t%s\n", from, to)
	for i := range nodes {
		current := nodes[i].Status.NodeInfo.KubeletVersion
		todo = todo || current != to
		fmt.Fprintf(w, "kubelet\t%s\t%s\t%s\n", nodes[i].Name, current, to)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if !todo {
		_, err := fmt.Fprintln(out, "\nThe cluster is up to date.")
		return err
	}
	_, err := fmt.Fprintf(out, "\nYou can now apply the upgrade by executing the following command on the control plane node of init:\n\n  hyperkube upgrade apply %s\n\n"+
		"and then on each other node, control plane nodes first:\n\n  hyperkube upgrade node\n", to)
	return err
}

// apply upgrades the first control plane node to the version of this program: it stops the node process of the old
// version, writes the files, and starts the new one. It refuses to run on a node that has joined.
func (o *upgrade) apply(ctx context.Context, out io.Writer, l layout.Node) error {
	if clusterconfig.HasJoined(l) && !layout.Exists(settingsFile(l)) {
		return command.PreflightError(errors.New("this machine joined the cluster: run `hyperkube upgrade node` instead"))
	}
	if err := o.checkPreflight(ctx, out, l); err != nil {
		return err
	}
	flags := initOptions{verbose: o.verbose, flags: controlPlaneSettings{Patches: o.patches}}
	m, err := flags.newNode(l, out, func(flag string) bool { return flag == "patches" && o.patches != "" }, false)
	if err != nil {
		return err
	}
	if o.dryRun {
		return dryRunWrite(out, l, func(l layout.Node) error { m.layout = l; return m.prepare() }, printUpgrade)
	}
	apiServer := m.watchAPIServer(ctx)
	defer apiServer.Stop()
	if err := stopNode(ctx, l, m.steps); err != nil {
		return err
	}
	began := time.Now()
	if err := m.prepare(); err != nil {
		return err
	}
	m.steps.Done(began, "static pod manifests written for %s", version.Get().GitVersion)
	began = time.Now()
	if err := node.Start(ctx, l, o.verbose, m.settings.Waits.upgrade(), m.steps); err != nil {
		return err
	}
	m.steps.Done(began, "node started")
	began = time.Now()
	if err := apiServer.waitStopped(ctx, m.waitOptions()); err != nil {
		return err
	}
	clients, err := m.setup().clients(ctx)
	if err != nil {
		return err
	}
	objects, err := m.setup().configObjects()
	if err != nil {
		return err
	}
	err = m.retryTransient(ctx, clients, func(ctx context.Context) error {
		if err := applyAll(ctx, clients, objects); err != nil {
			return err
		}
		if m.settings.skips("addon") {
			return nil
		}
		return m.setup().installAddons(ctx, clients)
	})
	if err != nil {
		return err
	}
	m.steps.Done(began, "cluster configuration and add-ons upgraded")
	fmt.Fprintf(out, "\nSUCCESS! Your control plane was upgraded to %s. Upgrade the other nodes with `hyperkube upgrade node`, control plane nodes first.\n", version.Get().GitVersion)
	return nil
}

// node upgrades a worker or an additional control plane node, which has joined the cluster, to the version of this
// program. It refuses to run on the first control plane node.
func (o *upgrade) node(ctx context.Context, out io.Writer, l layout.Node) error {
	if layout.Exists(settingsFile(l)) {
		return command.PreflightError(errors.New("this is the control plane node of init: run `hyperkube upgrade apply` instead"))
	}
	if err := o.checkPreflight(ctx, out, l); err != nil {
		return err
	}
	s := progress.New(progress.Print(out))
	if o.dryRun {
		return dryRunWrite(out, l, func(l layout.Node) error { return rewriteManifests(l, s, o.patches, o.verbose) }, printUpgrade)
	}
	var m *controlPlaneNode // nil on a worker
	var apiServer *apiServerWatch
	if clusterconfig.IsControlPlane(l) {
		var err error
		if m, err = (&initOptions{verbose: o.verbose}).newNode(l, out, func(string) bool { return false }, false); err != nil {
			return err
		}
		apiServer = m.watchAPIServer(ctx)
		defer apiServer.Stop()
	}
	if err := stopNode(ctx, l, s); err != nil {
		return err
	}
	if err := rewriteManifests(l, s, o.patches, o.verbose); err != nil {
		return err
	}
	began := time.Now()
	if err := node.Start(ctx, l, o.verbose, progress.DefaultTimeout, s); err != nil {
		return err
	}
	s.Done(began, "node started")
	if m != nil {
		// The next control plane node must not be upgraded before this one is ready.
		began = time.Now()
		if err := apiServer.waitStopped(ctx, m.waitOptions()); err != nil {
			return err
		}
		if _, err := m.setup().clients(ctx); err != nil {
			return err
		}
		s.Done(began, "control plane of this node ready")
	}
	fmt.Fprintf(out, "\nThe node was upgraded to %s.\n", version.Get().GitVersion)
	return nil
}

// checkUpgradeAllowed returns an error unless Kubernetes' version skew policy allows upgrading the cluster to the
// version of this program. Otherwise it returns a client of the cluster.
func checkUpgradeAllowed(l layout.Node) (kubernetes.Interface, error) {
	kube, from, err := clusterVersion(l)
	if err != nil {
		return nil, err
	}
	if err := checkSkew(from, version.Get().GitVersion); err != nil {
		return nil, command.PreflightError(err)
	}
	return kube, nil
}

// checkPreflight runs the preflight checks of an upgrade of this machine. It waits until the other control plane nodes
// are ready, unless this check is ignored or nothing is changed, and prints ignored problems to out as warnings.
func (o *upgrade) checkPreflight(ctx context.Context, out io.Writer, l layout.Node) error {
	kube, err := checkUpgradeAllowed(l)
	if err != nil {
		return err
	}
	var options node.Options
	if err := options.Load(l); err != nil {
		return err
	}
	look := func(ctx context.Context) ([]preflight.Problem, error) {
		return findUpgradeProblems(ctx, kube, l, options.Name)
	}
	var problems []preflight.Problem
	steps := progress.New(progress.Print(out))
	p := progress.Waiter{
		FirstReport: progress.FirstReport, ReportInterval: progress.ReportInterval, Timeout: nodesReadyTimeout,
		Report: func(text string) { steps.Send(progress.Step{Text: text, Waiting: true}) },
	}
	if o.dryRun || o.ignored.has(nodesReadyCheck) {
		problems, err = look(ctx)
	} else {
		err = p.Wait(ctx, "the other control plane nodes to be ready", nil, func(ctx context.Context) (err error) {
			problems, err = waitForNodes(ctx, look)
			return err
		})
	}
	if err != nil {
		return err
	}
	return preflight.FatalError(problems, o.ignored, printWarning(out))
}

// findUpgradeProblems returns the problems that prevent an upgrade of this machine. nodeName is the name of
// its node. Only control plane nodes list the other nodes, because a worker's kubelet may not be
// permitted to.
func findUpgradeProblems(ctx context.Context, kube kubernetes.Interface, l layout.Node, nodeName string) ([]preflight.Problem, error) {
	if !clusterconfig.IsControlPlane(l) {
		return upgradeProblems(l, nodeName, nil), nil
	}
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: clusterconfig.ControlPlaneRole})
	if err != nil {
		return nil, fmt.Errorf("listing control plane nodes: %w", err)
	}
	return upgradeProblems(l, nodeName, nodes.Items), nil
}

// nodesReadyCheck is the check that the other control plane nodes are ready. They may have been
// upgraded just before and have nodesReadyTimeout to become ready again.
const (
	nodesReadyCheck   = "ControlPlaneNodesReady"
	nodesReadyTimeout = 2 * time.Minute
)

// waitForNodes calls look every second until it reports no problem of the check nodesReadyCheck, or until ctx is done.
// It returns the problems of the last complete check, or the error of look.
func waitForNodes(ctx context.Context, look func(context.Context) ([]preflight.Problem, error)) ([]preflight.Problem, error) {
	var last []preflight.Problem
	for {
		problems, err := look(ctx)
		if err != nil && ctx.Err() != nil && len(last) > 0 {
			return last, nil // problems of the last complete check
		}
		if err != nil {
			return nil, err
		}
		last = problems
		wait := slices.ContainsFunc(problems, func(p preflight.Problem) bool { return p.Check == nodesReadyCheck })
		if !wait || !lifecycle.Pause(ctx, time.Second) {
			return problems, nil
		}
	}
}

// upgradeProblems returns the problems that prevent an upgrade of this machine in a cluster with these control plane
// nodes. On a worker it checks only the disk space. The node of this machine is not checked, because an interrupted
// upgrade may have left it unready.
func upgradeProblems(l layout.Node, nodeName string, nodes []corev1.Node) []preflight.Problem {
	var problems []preflight.Problem
	add := func(check, format string, args ...any) {
		problems = append(problems, preflight.NewProblem(check, fmt.Errorf(format, args...)))
	}
	if err := preflight.CheckDisk(l); err != nil {
		add("DiskSpace", "%w", err)
	}
	if !clusterconfig.IsControlPlane(l) {
		return problems
	}
	var unready, missing []string
	for i := range nodes {
		if nodes[i].Name != nodeName && !slices.ContainsFunc(nodes[i].Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			unready = append(unready, nodes[i].Name)
		}
	}
	if len(unready) > 0 {
		add(nodesReadyCheck, "other control plane nodes are not ready, so that etcd may lose its quorum: %s", strings.Join(unready, ", "))
	}
	for _, name := range manifests.Components() {
		if path := filepath.Join(l.StaticPods(), name+".yaml"); !layout.Exists(path) {
			missing = append(missing, path)
		}
	}
	if len(missing) > 0 {
		add("StaticPodManifest", "static pod manifests are missing: %s", strings.Join(missing, ", "))
	}
	return problems
}

// stopNodeTimeout is how long to wait until a node process has exited.
const stopNodeTimeout = 30 * time.Second

// stopNode stops the node process, for example that of the old version. Pods keep running. With
// a service, it does nothing, because the service is restarted when all files are written.
func stopNode(ctx context.Context, l layout.Node, s *progress.Steps) error {
	if node.IsUnit(l) {
		return nil
	}
	holder := func() (int, error) { return pidlock.Holder(l.PIDFile(layout.MainProcess)) }
	pid, err := holder()
	if err != nil || pid == 0 {
		return err
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, stopNodeTimeout)
	defer cancel()
	if err := pidlock.Terminate(ctx, pid, holder); err != nil {
		return fmt.Errorf("stopping node: %w", err)
	}
	s.Done(began, "node stopped, its pods keep running")
	return nil
}
