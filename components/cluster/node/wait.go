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
	"hyperkube/components/kubelet/staticpod"
	"hyperkube/components/runtime/runtimeclient"
	"hyperkube/internal/layout"
)

// wait is what the start of a node waits for.
type wait struct {
	layout layout.Node
	name   string
	kube   kubernetes.Interface
}

// describe says what keeps the node from being ready, and tells systemd: a static pod
// that does not run, for that may be the API server or its etcd, else what the API says.
func (w wait) describe(ctx context.Context) string {
	text := StaticPods(ctx, w.layout)
	if text == "" {
		text = w.api(ctx)
	}
	if text != "" {
		progress.NotifySystemd("STATUS=" + strings.ReplaceAll(text, "\n", " "))
	}
	return text
}

// StaticPods says which static pods of this machine cannot be made of their manifests or
// have ended, and with what last words; "" if all run that there are.
func StaticPods(ctx context.Context, l layout.Node) string {
	var texts []string
	for _, problem := range staticpod.Problems(l.StaticPods()) {
		texts = append(texts, problem.Error())
	}
	if ended := EndedStaticPods(ctx, l); ended != "" {
		texts = append(texts, ended)
	}
	return strings.Join(texts, "; ")
}

// EndedStaticPods says which static pods of this machine have ended, and with what last
// words; "" if none has.
func EndedStaticPods(ctx context.Context, l layout.Node) string {
	runtime, err := runtimeclient.Dial(l.RuntimeSocket())
	if err != nil {
		return err.Error()
	}
	defer runtime.Close()
	text, err := describeStaticPods(ctx, runtime)
	if err != nil {
		return err.Error()
	}
	return text
}

// describeStaticPods says which containers of static pods have ended, and with what last
// words; "" if all run that there are.
func describeStaticPods(ctx context.Context, runtime runtimeapi.RuntimeServiceClient) (string, error) {
	sandboxes, err := runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return "", fmt.Errorf("asking the container runtime for pods: %w", err)
	}
	static := map[string]bool{} // by sandbox
	for _, s := range sandboxes.Items {
		static[s.Id] = s.Annotations["kubernetes.io/config.source"] == "file"
	}
	list, err := runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return "", fmt.Errorf("asking the container runtime for containers: %w", err)
	}
	newest := map[string]*runtimeapi.Container{} // by pod and name
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
		text := fmt.Sprintf("%s has ended %d times, now with code %d", c.Labels[cri.LabelContainerName], c.Metadata.GetAttempt()+1, answer.GetStatus().GetExitCode())
		if last := lastWords(answer.GetStatus().GetLogPath()); last != "" {
			text += ": " + last
		}
		texts = append(texts, text)
	}
	slices.Sort(texts)
	return strings.Join(texts, "; "), nil
}

// lastWords is the last line of a container's log, or what it panicked with or Go ended it
// with; "" if nothing can be read of it.
//
// https://kubernetes.io/docs/concepts/cluster-administration/logging/
func lastWords(path string) string {
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
	n, _ := f.ReadAt(tail, max(0, info.Size()-most)) // it may have been cut meanwhile
	lines := bytes.Split(bytes.TrimSpace(tail[:n]), []byte("\n"))
	last := ""
	for _, line := range lines {
		// A time, the stream, and whether the line is whole come before what was written.
		words := strings.SplitN(string(line), " ", 4)
		if last = words[len(words)-1]; strings.HasPrefix(last, "panic: ") || strings.HasPrefix(last, "fatal error: ") {
			break // its stack follows
		}
	}
	return last
}

// api says what the API server answers, or how it sees the node.
func (w wait) api(ctx context.Context) string {
	body, err := w.kube.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Raw()
	if err != nil {
		return cmp.Or(failedChecks(body), short(body), err.Error())
	}
	node, err := w.kube.CoreV1().Nodes().Get(ctx, w.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Sprintf("the API server has no node %q yet", w.name)
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

// failedChecks are those of a body of /readyz that failed; "" if there is none in it.
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
	return "the API server is not ready for want of " + strings.Join(failed, ", ")
}

// short is an answer that is a line for people; "" if it is none.
func short(body []byte) string {
	text := strings.TrimSpace(string(body))
	if strings.ContainsAny(text, "{\n") || len(text) > 200 {
		return ""
	}
	return text
}
