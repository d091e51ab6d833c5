package masters

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

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/preflight"
	"hyperkube/components/cluster/progress"
	"hyperkube/internal/layout"
	"hyperkube/internal/lifecycle"
	"hyperkube/internal/version"
	"hyperkube/manifests"
)

// NewUpgrade makes the command `upgrade`.
func NewUpgrade() *cobra.Command {
	cmd := &cobra.Command{
		Use: "upgrade", Short: "Bring machines of init and join to the version of this program", Args: cobra.NoArgs,
		Long: "Bring machines of init and join to the version of this program: put the program of the new version in the place of the\n" +
			"old one on each machine, run `hyperkube upgrade apply` on the master that init has made, and then `hyperkube upgrade node`\n" +
			"on all other machines, masters first, one after the other. Pods go on meanwhile.",
	}
	o := &upgrade{}
	f := cmd.PersistentFlags()
	command.RootFlag(f, &o.root)
	f.BoolVarP(&o.verbose, "verbose", "v", false, "Log debug messages, too.")
	f.BoolVar(&o.dryRun, "dry-run", false, "Change nothing, and print what would be done.")
	o.ignored.register(f)
	apply := &cobra.Command{
		Use: "apply [VERSION]", Short: "Upgrade the master that init has made, and what the cluster keeps", Args: cobra.MaximumNArgs(1),
		RunE: o.command(o.apply),
	}
	apply.Flags().BoolP("yes", "y", false, "As with kubeadm, for scripts: nothing is asked for without it either.")
	around := 3 // lines, as kubeadm
	diff := &cobra.Command{
		Use: "diff [VERSION]", Short: "Print what an upgrade would change in this master's manifests", Args: cobra.MaximumNArgs(1),
		RunE: o.command(func(_ context.Context, out io.Writer, l layout.Node) error { return o.diff(out, l, around) }),
	}
	diff.Flags().IntVarP(&around, "context-lines", "c", around, "How many lines are printed around a change.")
	joined := &cobra.Command{
		Use: "node", Short: "Upgrade a machine that has joined, as a master or not", Args: cobra.NoArgs,
		RunE: o.command(o.node),
	}
	for _, c := range []*cobra.Command{apply, joined} {
		c.Flags().StringVar(&o.patches, "patches", "", "Folder of patches of the static pods, from now on; empty: that of init or join.")
	}
	cmd.AddCommand(
		apply,
		diff,
		&cobra.Command{
			Use: "plan [VERSION]", Short: "Tell what an upgrade to the version of this program changes", Args: cobra.MaximumNArgs(1),
			RunE: o.command(plan),
		},
		joined,
	)
	return cmd
}

// upgrade are the flags of `upgrade`.
type upgrade struct {
	root    string
	verbose bool
	dryRun  bool
	ignored ignored
	// patches is a folder of changes to the static pods, from now on; empty: that of before.
	patches string
}

// command runs one of upgrade's, if the version that is asked for is this program's.
func (o *upgrade) command(run func(ctx context.Context, out io.Writer, l layout.Node) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := command.NeedRoot(); err != nil {
			return err
		}
		if len(args) > 0 {
			if err := ownVersion(args[0]); err != nil {
				return command.ConfigError(err)
			}
		}
		return run(cmd.Context(), cmd.OutOrStdout(), command.Layout(o.root))
	}
}

// ownVersion refuses any version but that of this program, which may be said without
// what follows the patch.
func ownVersion(wish string) error {
	wished, err := apiversion.ParseGeneric(wish)
	if err != nil {
		return fmt.Errorf("%q is no version: %w", wish, err)
	}
	own := apiversion.MustParseGeneric(version.Get().GitVersion)
	whole := strings.Contains(wish, "+") && strings.TrimPrefix(wish, "v") != strings.TrimPrefix(version.Get().GitVersion, "v")
	if whole || !wished.EqualTo(own) {
		return fmt.Errorf("this program is %s: put that of %s in its place and run it", version.Get().GitVersion, wish)
	}
	return nil
}

// skew refuses steps that the objects in etcd and kubelets do not stand.
//
// https://kubernetes.io/releases/version-skew-policy/
func skew(from, to string) error {
	a, err := apiversion.ParseGeneric(from)
	if err != nil {
		return fmt.Errorf("the cluster's version %q: %w", from, err)
	}
	b, err := apiversion.ParseGeneric(to)
	if err != nil {
		return fmt.Errorf("this program's version %q: %w", to, err)
	}
	switch {
	case a.Major() != b.Major() || b.Minor() > a.Minor()+1:
		return fmt.Errorf("from %s to %s is more than one minor version: upgrade to those between first", from, to)
	case b.Minor() < a.Minor():
		return fmt.Errorf("from %s to %s goes back a minor version, which no cluster can", from, to)
	}
	return nil
}

// served is the version of the API server, and a client of it.
func served(l layout.Node) (kubernetes.Interface, string, error) {
	if !identity.HasJoined(l) {
		return nil, "", command.PreflightError(errors.New("neither init nor join has set up this machine: a cluster of `hyperkube up` is upgraded by `hyperkube up` of the new program"))
	}
	config, err := clientcmd.BuildConfigFromFlags("", identity.AdminKubeconfig(l))
	if err != nil {
		return nil, "", fmt.Errorf("reading the way to the cluster: %w", err)
	}
	config.Timeout = 30 * time.Second
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, "", err
	}
	info, err := kube.Discovery().ServerVersion()
	if err != nil {
		return nil, "", fmt.Errorf("asking for the cluster's version: %w", err)
	}
	return kube, info.GitVersion, nil
}

func plan(ctx context.Context, out io.Writer, l layout.Node) error {
	kube, from, err := served(l)
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
	return skew(from, to)
}

// printPlan tells which machines are of which version and what is to be typed.
func printPlan(out io.Writer, from, to string, nodes []corev1.Node) error {
	fmt.Fprintf(out, "Cluster version: %s\nThis program:    %s\n\n", from, to)
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
		_, err := fmt.Fprintln(out, "\nEverything is of this version.")
		return err
	}
	_, err := fmt.Fprintf(out, "\nWith this program in the place of the old one, on the master that init has made:\n\n  hyperkube upgrade apply %s\n\n"+
		"and then on each other machine, masters first:\n\n  hyperkube upgrade node\n", to)
	return err
}

// apply makes the master that init has made one of this program's version.
func (o *upgrade) apply(ctx context.Context, out io.Writer, l layout.Node) error {
	if identity.HasJoined(l) && !layout.Exists(settingsFile(l)) {
		return command.PreflightError(errors.New("this machine has joined: run `hyperkube upgrade node` here"))
	}
	if err := o.fit(ctx, out, l); err != nil {
		return err
	}
	given := initOptions{verbose: o.verbose, given: masterSettings{Patches: o.patches}}
	m, err := given.again(l, out, func(flag string) bool { return flag == "patches" && o.patches != "" }, false)
	if err != nil {
		return err
	}
	if o.dryRun {
		return rehearseWrite(out, l, func(l layout.Node) error { m.layout = l; return m.prepare() }, tellUpgrade)
	}
	before := m.incumbent(ctx)
	defer before.Stop()
	if err := endNode(ctx, l, m.steps); err != nil {
		return err
	}
	began := time.Now()
	if err := m.prepare(); err != nil {
		return err
	}
	m.steps.Done(began, "manifests are of %s", version.Get().GitVersion)
	began = time.Now()
	if err := node.Start(ctx, l, o.verbose, m.settings.Waits.upgrade(), m.steps); err != nil {
		return err
	}
	m.steps.Done(began, "the node runs")
	began = time.Now()
	if err := before.leave(ctx, m.patience()); err != nil {
		return err
	}
	clients, err := m.clients(ctx)
	if err != nil {
		return err
	}
	objects, err := m.configObjects()
	if err != nil {
		return err
	}
	err = m.persist(ctx, clients, func(ctx context.Context) error {
		if err := applyAll(ctx, clients, objects); err != nil {
			return err
		}
		if m.settings.skips("addon") {
			return nil
		}
		return m.installAddons(ctx, clients)
	})
	if err != nil {
		return err
	}
	m.steps.Done(began, "the cluster keeps its new version, and add-ons are of it")
	fmt.Fprintf(out, "\nThis master is of %s. Upgrade the other machines with `hyperkube upgrade node`, masters first.\n", version.Get().GitVersion)
	return nil
}

// node makes a machine that has joined one of this program's version.
func (o *upgrade) node(ctx context.Context, out io.Writer, l layout.Node) error {
	if layout.Exists(settingsFile(l)) {
		return command.PreflightError(errors.New("init has made this master: run `hyperkube upgrade apply` here"))
	}
	if err := o.fit(ctx, out, l); err != nil {
		return err
	}
	s := progress.New(progress.Print(out))
	if o.dryRun {
		return rehearseWrite(out, l, func(l layout.Node) error { return renewManifests(l, s, o.patches, o.verbose) }, tellUpgrade)
	}
	var m *master // nil: this machine is none
	var before *incumbent
	if identity.IsMaster(l) {
		var err error
		if m, err = (&initOptions{verbose: o.verbose}).again(l, out, func(string) bool { return false }, false); err != nil {
			return err
		}
		before = m.incumbent(ctx)
		defer before.Stop()
	}
	if err := endNode(ctx, l, s); err != nil {
		return err
	}
	if err := renewManifests(l, s, o.patches, o.verbose); err != nil {
		return err
	}
	began := time.Now()
	if err := node.Start(ctx, l, o.verbose, progress.WaitBound, s); err != nil {
		return err
	}
	s.Done(began, "the node runs")
	if m != nil {
		// The next master must not go before this one is back.
		began = time.Now()
		if err := before.leave(ctx, m.patience()); err != nil {
			return err
		}
		if _, err := m.clients(ctx); err != nil {
			return err
		}
		s.Done(began, "this machine's part of the control plane is ready")
	}
	fmt.Fprintf(out, "\nThis machine is of %s.\n", version.Get().GitVersion)
	return nil
}

// allowed tells why this program may not take the place of the one that runs, of the
// cluster's version, and is a client of that.
func allowed(l layout.Node) (kubernetes.Interface, error) {
	kube, from, err := served(l)
	if err != nil {
		return nil, err
	}
	if err := skew(from, version.Get().GitVersion); err != nil {
		return nil, command.PreflightError(err)
	}
	return kube, nil
}

// fit tells why this machine should not be upgraded now.
func (o *upgrade) fit(ctx context.Context, out io.Writer, l layout.Node) error {
	kube, err := allowed(l)
	if err != nil {
		return err
	}
	var own node.Options
	if err := own.Load(l); err != nil {
		return err
	}
	look := func(ctx context.Context) ([]preflight.Problem, error) { return lookAround(ctx, kube, l, own.Name) }
	var problems []preflight.Problem
	steps := progress.New(progress.Print(out))
	p := progress.Patience{
		First: progress.FirstWord, Every: progress.EveryWord, Bound: othersReadyWithin,
		Say: func(text string) { steps.Send(progress.Step{Text: text, Waiting: true}) },
	}
	if o.dryRun || o.ignored.has(othersReady) {
		problems, err = look(ctx)
	} else {
		err = p.Wait(ctx, "the other masters to be ready", nil, func(ctx context.Context) (err error) {
			problems, err = settled(ctx, look)
			return err
		})
	}
	if err != nil {
		return err
	}
	return preflight.Fatal(problems, o.ignored, warning(out))
}

// lookAround finds what stands in the way of an upgrade of this machine, whose node is own.
// Only masters ask who the others are: a worker's kubelet need not be allowed to.
func lookAround(ctx context.Context, kube kubernetes.Interface, l layout.Node, own string) ([]preflight.Problem, error) {
	if !identity.IsMaster(l) {
		return upgradeProblems(l, own, nil), nil
	}
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: controlPlaneRole})
	if err != nil {
		return nil, fmt.Errorf("listing masters: %w", err)
	}
	return upgradeProblems(l, own, nodes.Items), nil
}

// othersReady is the check of other masters, which have just been upgraded if this is done
// to one after the other, and have othersReadyWithin to be ready again.
const (
	othersReady       = "ControlPlaneNodesReady"
	othersReadyWithin = 2 * time.Minute
)

// settled are the problems that look finds when the other masters are ready, or when ctx ends.
func settled(ctx context.Context, look func(context.Context) ([]preflight.Problem, error)) ([]preflight.Problem, error) {
	var before []preflight.Problem
	for {
		problems, err := look(ctx)
		if err != nil && ctx.Err() != nil && len(before) > 0 {
			return before, nil // that is what was waited for
		}
		if err != nil {
			return nil, err
		}
		before = problems
		wait := slices.ContainsFunc(problems, func(p preflight.Problem) bool { return p.Check == othersReady })
		if !wait || !lifecycle.Pause(ctx, time.Second) {
			return problems, nil
		}
	}
}

// upgradeProblems are what stands in the way of an upgrade of this machine, whose node is own,
// in a cluster with these masters. A try that ended half way may have left its own unready.
func upgradeProblems(l layout.Node, own string, masters []corev1.Node) []preflight.Problem {
	var problems []preflight.Problem
	add := func(check, format string, args ...any) {
		problems = append(problems, preflight.Found(check, fmt.Errorf(format, args...)))
	}
	if err := preflight.CheckDisk(l); err != nil {
		add("DiskSpace", "%w", err)
	}
	if !identity.IsMaster(l) {
		return problems
	}
	var unready, missing []string
	for i := range masters {
		if masters[i].Name != own && !slices.ContainsFunc(masters[i].Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			unready = append(unready, masters[i].Name)
		}
	}
	if len(unready) > 0 {
		add(othersReady, "other masters are not ready, and with one more away the rest may not agree: %s", strings.Join(unready, ", "))
	}
	for _, name := range manifests.Components() {
		if path := filepath.Join(l.StaticPods(), name+".yaml"); !layout.Exists(path) {
			missing = append(missing, path)
		}
	}
	if len(missing) > 0 {
		add("StaticPodManifest", "manifests of this master's pods are missing: %s", strings.Join(missing, ", "))
	}
	return problems
}

// endNodeBound is how long a node may take to end.
const endNodeBound = 30 * time.Second

// endNode ends the node's process, such as one of the old program; pods go on. Under
// systemd the unit is restarted instead, when all is written.
func endNode(ctx context.Context, l layout.Node, s *progress.Steps) error {
	if node.IsUnit(l) {
		return nil
	}
	who := func() (int, error) { return pidlock.Holder(l.PIDFile(layout.MainProcess)) }
	pid, err := who()
	if err != nil || pid == 0 {
		return err
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, endNodeBound)
	defer cancel()
	if err := pidlock.End(ctx, pid, who); err != nil {
		return fmt.Errorf("ending the node: %w", err)
	}
	s.Done(began, "the node that ran has stopped, its pods go on")
	return nil
}
