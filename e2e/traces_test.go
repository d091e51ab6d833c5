package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hyperkube/internal/base/tracing/tracetest"
)

// tracedDeployment is a Deployment whose creation is traced.
const tracedDeployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: IMAGE, args: [hello]}]}
`

// TestTraces applies a Deployment and checks that one trace shows the way from the request of kubectl to the status Running
// of the pod, through all components.
func TestTraces(t *testing.T) {
	t.Parallel()
	m := newNetworked(t, "198.18.63.1/24")
	// A Unix socket is the same in all network namespaces.
	socket := filepath.Join(t.TempDir(), "collector")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	collector := tracetest.Serve(t, l)
	config := filepath.Join(m.dir, "traces.yaml")
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: unix://" + socket + "\nsamplingRatePerMillion: 1000000\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	m.hyperkube("up", "--root", m.root, "--config", config)
	m.apply(tracedDeployment)
	m.kubectl("wait", "--for=condition=Available", "deployment/web", "--timeout=60s")

	// The spans that the trace must contain, in the order in which they begin.
	want := []string{
		"apiserver POST /apis/apps/v1/namespaces/{:namespace}/deployments",
		"apiserver Create",
		"apiserver Create etcd3",
		"kube-controller-manager syncDeployment",
		"apiserver POST /apis/apps/v1/namespaces/{:namespace}/replicasets",
		"kube-controller-manager syncReplicaSet",
		"apiserver POST /api/v1/namespaces/{:namespace}/pods",
		"kube-scheduler schedulePod",
		"apiserver POST /api/v1/namespaces/{:namespace}/pods/{:name}/binding",
		"kubelet syncPod",
		"kubelet runtime.v1.RuntimeService/RunPodSandbox",
		"kubelet runtime.v1.RuntimeService/StartContainer",
		"apiserver PATCH /api/v1/namespaces/{:namespace}/pods/{:name}/status",
	}
	var missing []string
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	spans, ok := collector.Await(ctx, func(all []tracetest.Span) bool {
		missing = missingSpans(all, want)
		return len(missing) == 0
	})
	if !ok {
		t.Fatalf("the trace lacks %q; %d spans were received:\n%s", missing, len(spans), describeSpans(spans))
	}
	// Without a TracingConfiguration, objects have no trace.
	if got := m.kubectl("get", "pods", "-o", "jsonpath={.items[0].metadata.annotations.hyperkube\\.io/trace-context}"); !strings.HasPrefix(got, "00-") {
		t.Errorf("the pod has the trace context %q", got)
	}
	if fields := m.kubectl("get", "deployment", "web", "--show-managed-fields", "-o", "jsonpath={.metadata.managedFields}"); strings.Contains(fields, "trace-context") {
		t.Errorf("a user owns the annotation of the trace: %s", fields)
	}
}

// missingSpans returns those of want, each a service and a name, that the trace of the first one does not contain in this
// order.
func missingSpans(all []tracetest.Span, want []string) []string {
	service, name, _ := strings.Cut(want[0], " ")
	first := slices.IndexFunc(all, func(s tracetest.Span) bool { return s.Service == service && s.Name == name })
	if first < 0 {
		return want[:1]
	}
	var missing []string
	next := first
	for _, w := range want {
		service, name, _ := strings.Cut(w, " ")
		i := slices.IndexFunc(all[next:], func(s tracetest.Span) bool {
			return s.Trace == all[first].Trace && s.Service == service && s.Name == name
		})
		if i < 0 {
			missing = append(missing, w)
			continue
		}
		next += i
	}
	return missing
}

// describeSpans returns a line for each span.
func describeSpans(all []tracetest.Span) string {
	var lines []string
	for _, s := range all {
		lines = append(lines, fmt.Sprintf("%s %s %s %s %s", s.Begin.Format("15:04:05.000"), s.Trace[:6], s.Service, s.Name, s.End.Sub(s.Begin)))
	}
	return strings.Join(lines, "\n")
}
