package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/preflight"
	"hyperkube/components/cluster/service"
	"hyperkube/components/cluster/teardown"
	"hyperkube/components/cluster/up"
	"hyperkube/components/kubelet/pod/staticpod"
	"hyperkube/internal/base/version"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/pod/podutil"
)

// report is the output of `status`, as JSON or text.
type report struct {
	Version string `json:"version"`
	// MainPID is the PID of the main process, RuntimePID that of the container runtime; 0 if not
	// running.
	MainPID    int      `json:"pid"`
	RuntimePID int      `json:"runtimePID"`
	Data       string   `json:"data"`
	Log        string   `json:"log"`
	Server     string   `json:"server,omitempty"`
	Ready      bool     `json:"ready"`
	Nodes      []string `json:"nodes,omitempty"`
	Pods       int      `json:"pods"`
	PodsReady  int      `json:"podsReady"`
	// Config is a message about the configuration files, if they differ from the configuration of the running cluster.
	Config string `json:"config,omitempty"`
	// Problems are messages about what is wrong.
	Problems []string `json:"problems,omitempty"`
}

// newStatus returns the command `status`. It fails if there is a problem.
func newStatus() *cobra.Command {
	var root string
	var form command.Output
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the status of the cluster on this machine and any problems",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := command.RequireRoot(); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), 10*time.Second)
			defer cancel()
			r := status(ctx, command.Layout(root))
			err := form.Write(cmd.OutOrStdout(), r, func(w io.Writer) error {
				r.print(w)
				return nil
			})
			if err != nil || len(r.Problems) == 0 {
				return err
			}
			return command.WithCode(fmt.Errorf("problems found: %d", len(r.Problems)), command.ExitGeneral)
		},
	}
	command.RootFlag(cmd.Flags(), &root)
	form.Flag(cmd)
	return cmd
}

// startCommand returns the command with which the user starts the node of this machine: that of the service if there is
// one, otherwise the command that has set up the machine.
func startCommand(l layout.Node) string {
	root := l.Root()
	if root != "" {
		root = " --root=" + root
	}
	switch {
	case service.Cluster.Exists(l):
		return service.Cluster.StartCommand()
	case service.Node.Exists(l):
		return service.Node.StartCommand()
	case !clusterconfig.HasJoined(l):
		return "hyperkube up" + root
	case layout.Exists(clusterconfig.File(l)):
		return "hyperkube init" + root
	default:
		return "hyperkube join" + root
	}
}

// status collects the state of this machine's node and its cluster. Failed queries become problems of the report. It
// does not query the cluster if the main process does not run or waits for disk space.
func status(ctx context.Context, l layout.Node) report {
	r := report{Version: version.Get().GitVersion, Data: l.Data, Log: l.Log(layout.MainProcess)}
	for _, unit := range []service.Unit{service.Cluster, service.Node} {
		if unit.Exists(l) {
			r.Log = unit.LogCommand()
		}
	}
	r.checkProcesses(l)
	if r.MainPID != 0 && !clusterconfig.HasJoined(l) {
		r.checkConfig(l)
	}
	if clusterconfig.HasJoined(l) { // clusters of up have no static pods
		r.checkManifests(l)
	}
	switch reason, err := os.ReadFile(l.Stopped()); {
	case r.MainPID == 0:
	case err == nil && len(reason) > 0: // The file may be empty or missing, if it is on the full disk.
		r.addProblem("waiting for free disk space to restart the cluster: %s", reason)
	default:
		r.checkCluster(ctx, l)
	}
	return r
}

// addProblem adds a formatted message to the problems of the report.
func (r *report) addProblem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

// checkProcesses adds the PIDs of the main process and of the container runtime to the report, and a problem for each
// that should run but does not.
func (r *report) checkProcesses(l layout.Node) {
	var err error
	if r.MainPID, err = pidlock.Holder(l.PIDFile(layout.MainProcess)); err != nil {
		r.addProblem("%v", err)
	}
	if r.RuntimePID, err = node.RuntimePID(l); err != nil {
		r.addProblem("%v", err)
	} else if r.RuntimePID == 0 && r.MainPID != 0 {
		r.addProblem("the container runtime is not running; see %s", l.Log("runtime"))
	}
	if r.MainPID == 0 {
		if clusterconfig.HasJoined(l) || layout.Exists(clusterconfig.File(l)) {
			r.addProblem("hyperkube is not running; start it with `%s`", startCommand(l))
		} else {
			r.addProblem("there is no cluster on this machine; create one with `hyperkube up`")
		}
		return
	}
	if err := teardown.EachAdditionalNode(l, func(i int) error {
		pid, err := pidlock.Holder(l.Numbered(i).PIDFile(layout.MainProcess))
		if err == nil && pid == 0 {
			err = fmt.Errorf("not running; start it with `hyperkube up`; see %s", l.Numbered(i).Log(layout.MainProcess))
		}
		return err
	}); err != nil {
		r.addProblem("%v", err)
	}
}

// checkConfig sets r.Config if the configuration files are invalid or differ from the configuration of the running
// cluster.
func (r *report) checkConfig(l layout.Node) {
	switch changed, err := up.HasConfigChanged(l); {
	case err != nil:
		r.Config = fmt.Sprintf("invalid, the next `hyperkube up` fails: %v", err)
	case changed:
		r.Config = "changed since the start; `hyperkube config diff` prints the changes, `hyperkube up` applies them"
	}
}

// checkManifests adds a problem for each static pod manifest of this machine that the kubelet cannot use.
func (r *report) checkManifests(l layout.Node) {
	for _, problem := range staticpod.Problems(l.StaticPods()) {
		r.addProblem("%v", problem)
	}
}

// checkCluster queries the API server and adds its health, the nodes and the pods to the report.
func (r *report) checkCluster(ctx context.Context, l layout.Node) {
	rest, err := clientcmd.BuildConfigFromFlags("", clusterconfig.AdminKubeconfig(l))
	if err != nil {
		r.addProblem("%v", err)
		return
	}
	r.Server = rest.Host
	kube, err := kubernetes.NewForConfig(rest)
	if err != nil {
		r.addProblem("%v", err)
		return
	}
	text, err := kube.Discovery().RESTClient().Get().AbsPath("/readyz").Param("verbose", "true").DoRaw(ctx)
	if err != nil {
		r.addProblem("the API server is not ready: %v", err)
		if err := preflight.CheckDisk(l); err != nil {
			r.addProblem("%v", err)
		}
		if clusterconfig.IsControlPlane(l) {
			if text := node.ExitedStaticPods(ctx, l); text != "" {
				r.addProblem("%s", text)
			}
		}
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if check, failed := strings.CutPrefix(line, "[-]"); failed {
			r.addProblem("API server check failed: %s", check)
		}
	}
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		r.addProblem("listing nodes: %v", err)
		return
	}
	r.addNodes(nodes.Items)
	pods, err := kube.CoreV1().Pods("").List(ctx, podListOptions(l))
	if err != nil {
		r.addProblem("listing pods: %v", err)
		return
	}
	r.countPods(pods.Items)
	if clusterconfig.HasJoined(l) { // only the process of up applies sets of objects
		return
	}
	r.checkSets(ctx, kube)
}

// addNodes adds the nodes and whether all are ready to the report. A node that is not ready, and every other condition
// of a node that is true, is a problem.
func (r *report) addNodes(nodes []corev1.Node) {
	r.Ready = len(nodes) > 0
	for i := range nodes {
		n := &nodes[i]
		state := "NotReady"
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				state = "Ready"
			} else if c.Type == corev1.NodeReady {
				r.addProblem("node %s: %s", n.Name, c.Message)
			} else if c.Status == corev1.ConditionTrue {
				r.addProblem("node %s: %s: %s", n.Name, c.Type, c.Message)
			}
		}
		r.Ready = r.Ready && state == "Ready"
		r.Nodes = append(r.Nodes, n.Name+" "+state)
	}
}

// countPods adds the number of pods, and of ready ones, to the report. It ignores succeeded pods.
func (r *report) countPods(pods []corev1.Pod) {
	for i := range pods {
		if pods[i].Status.Phase == corev1.PodSucceeded {
			continue
		}
		r.Pods++
		if podutil.Ready(&pods[i]) {
			r.PodsReady++
		}
	}
}

// podListOptions returns options for listing the pods that this machine may list: a worker can only list
// the pods of its node.
func podListOptions(l layout.Node) metav1.ListOptions {
	var o node.Options
	if clusterconfig.AdminKubeconfig(l) != filepath.Join(l.Etc, "kubelet.conf") || o.Load(l) != nil {
		return metav1.ListOptions{}
	}
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", o.Name).String()}
}

// print writes the report as text: a line for each value, node and problem.
func (r report) print(w io.Writer) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-10s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("version", "%s", r.Version)
	running := func(pid int) string {
		if pid == 0 {
			return "not running"
		}
		return fmt.Sprintf("running (PID %d)", pid)
	}
	line("hyperkube", "%s", running(r.MainPID))
	line("runtime", "%s", running(r.RuntimePID))
	if r.Server != "" {
		line("server", "%s", r.Server)
	}
	for _, n := range r.Nodes {
		line("node", "%s", n)
	}
	if r.MainPID != 0 {
		line("pods", "%d of %d ready", r.PodsReady, r.Pods)
	}
	if r.Config != "" {
		line("config", "%s", r.Config)
	}
	line("data", "%s", r.Data)
	line("log", "%s", r.Log)
	for _, p := range r.Problems {
		line("problem", "%s", p)
	}
}
