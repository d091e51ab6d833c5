package node

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/cluster/progress"
	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/pod/staticpod"
	"hyperkube/components/runtime/runtimeclient"
	"hyperkube/internal/host/layout"
)

// startStatus describes the status of a starting node.
type startStatus struct {
	layout layout.Node
	name   string
	kube   kubernetes.Interface
}

// describe describes what the start of the node waits for, and sets it as status text of the systemd unit. It first
// checks static pods, which may be the API server or etcd, then the API. It returns "" if it finds no problem.
func (w startStatus) describe(ctx context.Context) string {
	text := StaticPodProblems(ctx, w.layout)
	if text == "" {
		text = w.describeAPI(ctx)
	}
	if text != "" {
		progress.NotifySystemd("STATUS=" + strings.ReplaceAll(text, "\n", " "))
	}
	return text
}

// StaticPodProblems describes static pods of this machine that have an invalid manifest or have exited, with the last
// line of their logs. It returns "" if all static pods run, and the error if the container runtime does not answer.
func StaticPodProblems(ctx context.Context, l layout.Node) string {
	var texts []string
	for _, problem := range staticpod.Problems(l.StaticPods()) {
		texts = append(texts, problem.Error())
	}
	if exited := ExitedStaticPods(ctx, l); exited != "" {
		texts = append(texts, exited)
	}
	return strings.Join(texts, "; ")
}

// ExitedStaticPods describes containers of static pods of this machine that have exited, with the last line of their
// logs. It returns "" if there are none, and the error if the container runtime does not answer.
func ExitedStaticPods(ctx context.Context, l layout.Node) string {
	runtime, err := runtimeclient.Dial(l.RuntimeSocket())
	if err != nil {
		return err.Error()
	}
	defer runtime.Close()
	text, err := describeExited(ctx, runtime)
	if err != nil {
		return err.Error()
	}
	return text
}

// describeExited describes containers of static pods that have exited, with the last line of their logs. Only the
// latest container of each name counts, so a container that was restarted is left out. It returns "" if there are none.
func describeExited(ctx context.Context, runtime runtimeapi.RuntimeServiceClient) (string, error) {
	sandboxes, err := runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return "", fmt.Errorf("listing pod sandboxes of the container runtime: %w", err)
	}
	static := map[string]bool{} // by sandbox ID
	for _, s := range sandboxes.Items {
		static[s.Id] = s.Annotations["kubernetes.io/config.source"] == "file"
	}
	list, err := runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return "", fmt.Errorf("listing containers of the container runtime: %w", err)
	}
	newest := map[string]*runtimeapi.Container{} // by pod and container name
	for _, c := range list.Containers {
		key := c.Labels[cri.LabelPodName] + "/" + c.Labels[cri.LabelContainerName]
		if old := newest[key]; static[c.PodSandboxId] && (old == nil || old.CreatedAt < c.CreatedAt) {
			newest[key] = c
		}
	}
	var texts []string
	for _, c := range newest {
		if c.State != runtimeapi.ContainerState_CONTAINER_EXITED {
			continue
		}
		answer, err := runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.Id})
		if err != nil {
			continue // it was just removed
		}
		text := fmt.Sprintf("%s has exited %d times, last exit code %d", c.Labels[cri.LabelContainerName], c.Metadata.GetAttempt()+1, answer.GetStatus().GetExitCode())
		if last := lastLogLine(answer.GetStatus().GetLogPath()); last != "" {
			text += ": " + last
		}
		texts = append(texts, text)
	}
	slices.Sort(texts)
	return strings.Join(texts, "; "), nil
}

// lastLogLine returns the last line of a container's log, without timestamp and stream. If the last 16 KiB contain the
// line of a Go panic or fatal error, it returns that. It returns "" if the log cannot be read.
//
// https://kubernetes.io/docs/concepts/cluster-administration/logging/
func lastLogLine(path string) string {
	const most = 16 << 10
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	tail := make([]byte, min(most, info.Size()))
	n, _ := f.ReadAt(tail, max(0, info.Size()-most)) // the log may have been truncated since Stat
	lines := bytes.Split(bytes.TrimSpace(tail[:n]), []byte("\n"))
	last := ""
	for _, line := range lines {
		// A line consists of timestamp, stream, full or partial tag, and text.
		words := strings.SplitN(string(line), " ", 4)
		if last = words[len(words)-1]; strings.HasPrefix(last, "panic: ") || strings.HasPrefix(last, "fatal error: ") {
			break // the stack trace follows
		}
	}
	return last
}

// describeAPI describes why the API server is not ready, or else why the node is not. It returns "" if both are ready.
func (w startStatus) describeAPI(ctx context.Context) string {
	body, err := w.kube.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Raw()
	if err != nil {
		return cmp.Or(failedChecks(body), shortLine(body), err.Error())
	}
	node, err := w.kube.CoreV1().Nodes().Get(ctx, w.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Sprintf("node %q is not registered yet", w.name)
	}
	if err != nil {
		return err.Error()
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

// failedChecks describes the failed checks in the body of a /readyz response; "" if there are none.
func failedChecks(body []byte) string {
	var failed []string
	for line := range strings.Lines(string(body)) {
		if name, ok := strings.CutPrefix(line, "[-]"); ok {
			failed = append(failed, strings.Fields(name)[0])
		}
	}
	if len(failed) == 0 {
		return ""
	}
	return "the API server is not ready, failed checks: " + strings.Join(failed, ", ")
}

// shortLine returns body if it is one short line of text, otherwise "".
func shortLine(body []byte) string {
	text := strings.TrimSpace(string(body))
	if strings.ContainsAny(text, "{\n") || len(text) > 200 {
		return ""
	}
	return text
}
