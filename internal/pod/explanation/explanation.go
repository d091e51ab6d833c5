// Package explanation reads the objects that determine the state of a pod or workload from the API server, and explains the state with
// package podexplain. The command explain-pod and the dashboard show the result.
package explanation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"hyperkube/internal/pod/podexplain"
)

// ErrNotFound means that no object has the name.
var ErrNotFound = errors.New("not found")

// Explanation explains the state of a pod or workload.
type Explanation struct {
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

// Explain reads the objects of a pod or workload with the permissions of kube, and explains its state. name is that of a pod or
// workload, and may have the prefix of a kind, such as deployment/. Of a workload, a pod that is not ready is explained, or else the newest
// one. Objects that the user may not read are left out and named in Unreadable. Explain returns ErrNotFound if the name does not exist,
// and the error of the API server if the user may not read the object itself.
func Explain(ctx context.Context, kube kubernetes.Interface, namespace, name string) (*Explanation, error) {
	r := &reader{kube: kube, namespace: namespace}
	kind, err := r.find(ctx, name)
	if err != nil {
		return nil, err
	}
	r.read(ctx)
	out := &Explanation{Kind: kind, Namespace: namespace, Name: name[strings.Index(name, "/")+1:], State: "without pods", Findings: podexplain.Explain(r.in), Unreadable: r.unreadable}
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

// Write prints the explanation as text.
func (e *Explanation) Write(w io.Writer) error {
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
