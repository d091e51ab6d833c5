// Package explainpod explains on the command line why a pod is where it is, or why it is not running.
package explainpod

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"hyperkube/internal/credentials/kubeconfig"
	"hyperkube/internal/pod/podexplain"
)

// options are the flags of the command.
type options struct {
	selection kubeconfig.Selection
	output    string
}

// NewCommand returns the `hyperkube explain-pod` command.
func NewCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "explain-pod NAME",
		Short: "Explain why a pod is where it is, or why it is not running",
		Long: `Explain why a pod is where it is, or why it is not running, with a remedy for each problem.

NAME is a pod, or a Deployment, StatefulSet, DaemonSet, ReplicaSet or Job, of which a pod is explained that is not ready, or why it has no
pods. A kind can precede the name, such as deployment/web. The explanation is derived from the status of the objects and from events, which
the command reads with the credentials of the kubeconfig, also from clusters that hyperkube does not run. It reports what the user may not read.`,
		Example: `  hyperkube explain-pod web-6b6b8d9c4c-8x2lq
  hyperkube explain-pod deployment/web -n shop -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args[0]) },
	}
	f := cmd.Flags()
	o.selection.AddFlags(f)
	f.StringVarP(&o.selection.Namespace, "namespace", "n", "", "Namespace of the pod. If empty, that of the context is used.")
	f.StringVarP(&o.output, "output", "o", "text", "Output format: text or json.")
	return cmd
}

// run explains the pod or workload with the name.
func (o *options) run(cmd *cobra.Command, name string) error {
	if o.output != "text" && o.output != "json" {
		return fmt.Errorf("unknown output format %q, use text or json", o.output)
	}
	cfg, namespace, err := o.selection.Load("hyperkube-explain-pod")
	if err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("creating the API client: %w", err)
	}
	out, err := explain(cmd.Context(), kube, namespace, name)
	if err != nil {
		return err
	}
	if o.output == "json" {
		encoder := json.NewEncoder(cmd.OutOrStdout())
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(out)
	}
	return out.write(cmd.OutOrStdout())
}

// explanation is the result of the command.
type explanation struct {
	// Kind and Name are those of the object that was explained, which is the pod if there is one.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// State is a short description of the state of the pod, such as "running and ready".
	State string `json:"state"`
	Node  string `json:"node,omitempty"`
	// Findings are sorted: problems first.
	Findings []podexplain.Finding `json:"findings"`
	// Unreadable are the objects that could not be read, with the reason. Findings may be missing because of them.
	Unreadable []string `json:"unreadable,omitempty"`
}

// explain reads the objects of a pod or workload and explains them. It returns an error if the name does not exist or cannot be
// read.
func explain(ctx context.Context, kube kubernetes.Interface, namespace, name string) (*explanation, error) {
	r := &reader{kube: kube, namespace: namespace}
	kind, err := r.find(ctx, name)
	if err != nil {
		return nil, err
	}
	r.read(ctx)
	out := &explanation{Kind: kind, Namespace: namespace, Name: name[strings.Index(name, "/")+1:], State: "without pods", Findings: podexplain.Explain(r.in), Unreadable: r.unreadable}
	if pod := r.in.Pod; pod != nil {
		out.Kind, out.Name, out.Node, out.State = "Pod", pod.Name, pod.Spec.NodeName, state(pod)
	}
	return out, nil
}

// state returns a short description of the state of a pod.
func state(pod *corev1.Pod) string {
	switch {
	case pod.DeletionTimestamp != nil:
		return "being deleted"
	case pod.Status.Phase == corev1.PodRunning && ready(pod):
		return "running and ready"
	case pod.Status.Phase == corev1.PodRunning:
		return "running, but not ready"
	case pod.Status.Phase == corev1.PodPending && pod.Spec.NodeName == "":
		return "not scheduled"
	case pod.Status.Phase == corev1.PodPending:
		return "not started"
	}
	return strings.ToLower(string(pod.Status.Phase))
}

// write prints the explanation as text.
func (e *explanation) write(w io.Writer) error {
	var out strings.Builder
	fmt.Fprintf(&out, "%s %s/%s is %s", e.Kind, e.Namespace, e.Name, e.State)
	if e.Node != "" {
		fmt.Fprintf(&out, " on node %s", e.Node)
	}
	out.WriteString(".\n")
	problems := slices.ContainsFunc(e.Findings, func(f podexplain.Finding) bool { return f.Severity == podexplain.Problem })
	for _, f := range e.Findings {
		out.WriteString("\n")
		if f.Severity == podexplain.Problem {
			out.WriteString("Problem: ")
		}
		fmt.Fprintln(&out, strings.TrimSpace(f.Sentence))
		if f.Remedy != "" {
			fmt.Fprintf(&out, "Remedy: %s\n", f.Remedy)
		}
	}
	if !problems {
		out.WriteString("\nNo problem was found.\n")
	}
	if len(e.Unreadable) > 0 {
		fmt.Fprintf(&out, "\nNot read, so that causes may be missing: %s.\n", strings.Join(e.Unreadable, ", "))
	}
	_, err := io.WriteString(w, out.String())
	return err
}
