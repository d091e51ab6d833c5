// Package explainpod explains on the command line why a pod is where it is, or why it is not running.
package explainpod

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"hyperkube/internal/credentials/kubeconfig"
	"hyperkube/internal/pod/explanation"
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
	out, err := explanation.Explain(cmd.Context(), kube, namespace, name)
	if err != nil {
		return err
	}
	if o.output == "json" {
		encoder := json.NewEncoder(cmd.OutOrStdout())
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(out)
	}
	return out.Write(cmd.OutOrStdout())
}
