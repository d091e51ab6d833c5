package cluster

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/teardown"
	"hyperkube/components/kubelet/staticpod"
	"hyperkube/internal/layout"
	"hyperkube/internal/podfacts"
	"hyperkube/internal/version"
)

// report is what `status` tells.
type report struct {
	Version string `json:"version"`
	// Running is the main process, Runtime the container runtime; zero: not
	// running.
	Running   int      `json:"pid"`
	Runtime   int      `json:"runtimePID"`
	Data      string   `json:"data"`
	Log       string   `json:"log"`
	Server    string   `json:"server,omitempty"`
	Ready     bool     `json:"ready"`
	Nodes     []string `json:"nodes,omitempty"`
	Pods      int      `json:"pods"`
	PodsReady int      `json:"podsReady"`
	// Problems are what is wrong, in words.
	Problems []string `json:"problems,omitempty"`
}

func newStatus() *cobra.Command {
	var root string
	var form command.Output
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Tell what runs, where, and what is wrong",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := command.NeedRoot(); err != nil {
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

// again is the command that starts what was set up here.
func again(l layout.Node) string {
	switch {
	case !identity.HasJoined(l):
		return "hyperkube up"
	case layout.Exists(identity.File(l)):
		return "hyperkube init"
	default:
		return "hyperkube join"
	}
}

// status looks at everything; what it cannot see is a problem, never an error.
func status(ctx context.Context, l layout.Node) report {
	r := report{Version: version.Get().GitVersion, Data: l.Data, Log: l.Log(layout.MainProcess)}
	r.lookAtProcesses(l)
	if identity.HasJoined(l) { // others have no static pods
		r.lookAtManifests(l)
	}
	if r.Running != 0 {
		r.lookAtCluster(ctx, l)
	}
	return r
}

func (r *report) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

// lookAtProcesses looks for the processes of this machine.
func (r *report) lookAtProcesses(l layout.Node) {
	var err error
	if r.Running, err = pidlock.Holder(l.PIDFile(layout.MainProcess)); err != nil {
		r.problem("%v", err)
	}
	if r.Runtime, err = node.RuntimePID(l); err != nil {
		r.problem("%v", err)
	} else if r.Runtime == 0 && r.Running != 0 {
		r.problem("the container runtime does not run: see %s", l.Log("runtime"))
	}
	if r.Running == 0 {
		if identity.HasJoined(l) || layout.Exists(identity.File(l)) {
			r.problem("hyperkube is not running: start it with %s", again(l))
		} else {
			r.problem("there is no cluster here: make one with hyperkube up")
		}
		return
	}
	if err := teardown.EachFurther(l, func(i int) error {
		pid, err := pidlock.Holder(l.Numbered(i).PIDFile(layout.MainProcess))
		if err == nil && pid == 0 {
			err = fmt.Errorf("it is not running: start it with hyperkube up; see %s", l.Numbered(i).Log(layout.MainProcess))
		}
		return err
	}); err != nil {
		r.problem("%v", err)
	}
}

// lookAtManifests looks for those of which no pod is run.
func (r *report) lookAtManifests(l layout.Node) {
	for _, problem := range staticpod.Problems(l.StaticPods()) {
		r.problem("%v", problem)
	}
}

// lookAtCluster asks the API server.
func (r *report) lookAtCluster(ctx context.Context, l layout.Node) {
	rest, err := clientcmd.BuildConfigFromFlags("", identity.AdminKubeconfig(l))
	if err != nil {
		r.problem("%v", err)
		return
	}
	r.Server = rest.Host
	kube, err := kubernetes.NewForConfig(rest)
	if err != nil {
		r.problem("%v", err)
		return
	}
	text, err := kube.Discovery().RESTClient().Get().AbsPath("/readyz").Param("verbose", "true").DoRaw(ctx)
	if err != nil {
		r.problem("the API server is not ready: %v", err)
		if identity.IsMaster(l) {
			if text := node.EndedStaticPods(ctx, l); text != "" {
				r.problem("%s", text)
			}
		}
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if check, failed := strings.CutPrefix(line, "[-]"); failed {
			r.problem("the API server's check fails: %s", check)
		}
	}
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		r.problem("nodes cannot be listed: %v", err)
		return
	}
	r.tellNodes(nodes.Items)
	pods, err := kube.CoreV1().Pods("").List(ctx, ofNode(l))
	if err != nil {
		r.problem("pods cannot be listed: %v", err)
		return
	}
	r.countPods(pods.Items)
}

func (r *report) tellNodes(nodes []corev1.Node) {
	r.Ready = len(nodes) > 0
	for i := range nodes {
		n := &nodes[i]
		state := "NotReady"
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				state = "Ready"
			} else if c.Type == corev1.NodeReady {
				r.problem("node %s: %s", n.Name, c.Message)
			} else if c.Status == corev1.ConditionTrue {
				r.problem("node %s: %s: %s", n.Name, c.Type, c.Message)
			}
		}
		r.Ready = r.Ready && state == "Ready"
		r.Nodes = append(r.Nodes, n.Name+" "+state)
	}
}

// countPods counts those that are to run.
func (r *report) countPods(pods []corev1.Pod) {
	for i := range pods {
		if pods[i].Status.Phase == corev1.PodSucceeded {
			continue
		}
		r.Pods++
		if podfacts.Ready(&pods[i]) {
			r.PodsReady++
		}
	}
}

// ofNode selects the pods that may be listed: a worker lists its own.
func ofNode(l layout.Node) metav1.ListOptions {
	var o node.Options
	if identity.AdminKubeconfig(l) != filepath.Join(l.Etc, "kubelet.conf") || o.Load(l) != nil {
		return metav1.ListOptions{}
	}
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", o.Name).String()}
}

func (r report) print(w io.Writer) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-10s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("version", "%s", r.Version)
	running := func(pid int) string {
		if pid == 0 {
			return "not running"
		}
		return fmt.Sprintf("running, process %d", pid)
	}
	line("hyperkube", "%s", running(r.Running))
	line("runtime", "%s", running(r.Runtime))
	if r.Server != "" {
		line("server", "%s", r.Server)
	}
	for _, n := range r.Nodes {
		line("node", "%s", n)
	}
	if r.Running != 0 {
		line("pods", "%d of %d ready", r.PodsReady, r.Pods)
	}
	line("data", "%s", r.Data)
	line("log", "%s", r.Log)
	for _, p := range r.Problems {
		line("problem", "%s", p)
	}
}
