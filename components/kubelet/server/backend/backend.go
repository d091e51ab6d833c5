// Package backend provides the kubelet's HTTPS server with the pods, their containers and the statistics of the
// node.
package backend

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/node/stats"
	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/components/kubelet/server"
)

// Pods finds the pods of the node and their containers. Its methods must be safe for concurrent use.
type Pods interface {
	// Pods returns all pods with their latest status.
	Pods() []*v1.Pod
	// Container returns a pod and the latest attempt of one of its containers or, with previous, the one
	// before. uid may be empty.
	Container(namespace, name string, uid types.UID, container string, previous bool) (*v1.Pod, podstate.Container, error)
	// Sandbox returns the ID of a pod's sandbox. uid may be empty.
	Sandbox(namespace, name string, uid types.UID) (string, error)
}

// Workers run the pods and report the exits of containers. Its methods must be safe for concurrent use.
type Workers interface {
	// Exited returns a channel that is closed when the container has exited. The caller must call
	// CancelExited.
	Exited(ctx context.Context, id string) <-chan struct{}
	CancelExited(id string, ch <-chan struct{})
	// Healthy returns an error until the workers have received events of the runtime for the first time.
	Healthy() error
}

// Config is the configuration of a Backend. All fields are required.
type Config struct {
	// Root is the kubelet's root directory.
	Root    string
	Pods    Pods
	Workers Workers
	CRI     *cri.Client
	// Exec runs a command in a container and returns its exit code and output.
	Exec func(ctx context.Context, id string, cmd []string, timeout time.Duration) (int, []byte, error)
	// LogDir returns the log directory of a pod.
	LogDir  func(*v1.Pod) string
	Stats   *stats.Provider
	Volumes *stats.Volumes
	// Configz returns the effective configuration.
	Configz func() any
	// Metrics are the gatherers by path.
	Metrics map[string]prometheus.Gatherer
}

// Backend is the server.Backend of this node: it gets pods from the pod workers, containers from the runtime,
// and statistics and metrics from their providers.
type Backend struct{ cfg Config }

// New returns the Backend of a configuration.
func New(cfg Config) *Backend { return &Backend{cfg: cfg} }

// notFound makes err wrap server.ErrNotFound if it is a pods.ErrNoPod, so that the server responds with
// status 404.
func notFound(err error) error {
	if errors.Is(err, pods.ErrNoPod) {
		return fmt.Errorf("%w: %w", err, server.ErrNotFound)
	}
	return err
}

// Pods returns the pods of the node with their latest status.
func (b *Backend) Pods() []*v1.Pod { return b.cfg.Pods.Pods() }

// RunningPods returns the pods with a ready sandbox and their running containers, as the runtime reports
// them, also those that the kubelet does not track.
func (b *Backend) RunningPods(ctx context.Context) ([]*v1.Pod, error) {
	boxes, err := b.cfg.CRI.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}},
	})
	if err != nil {
		return nil, err
	}
	containers, err := b.cfg.CRI.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}},
	})
	if err != nil {
		return nil, err
	}
	var out []*v1.Pod
	for _, box := range boxes.Items {
		pod := &v1.Pod{}
		pod.Name, pod.Namespace, pod.UID = box.GetMetadata().GetName(), box.GetMetadata().GetNamespace(), types.UID(box.GetMetadata().GetUid())
		for _, c := range containers.Containers {
			if c.PodSandboxId == box.Id {
				pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: c.GetMetadata().GetName(), Image: c.GetImage().GetImage()})
			}
		}
		out = append(out, pod)
	}
	return out, nil
}

// Container returns a pod and the state of one of its containers, with the absolute path of its log. The error
// wraps server.ErrNotFound if there is no such pod or container.
func (b *Backend) Container(namespace, pod string, uid types.UID, container string, previous bool) (*v1.Pod, podstate.Container, error) {
	p, c, err := b.cfg.Pods.Container(namespace, pod, uid, container, previous)
	if err == nil && c.LogPath != "" && !filepath.IsAbs(c.LogPath) {
		c.LogPath = filepath.Join(b.cfg.LogDir(p), c.LogPath)
	}
	return p, c, notFound(err)
}

// Exited returns a channel that is closed when the container with the ID has exited. The caller must call
// CancelExited.
func (b *Backend) Exited(ctx context.Context, id string) <-chan struct{} {
	return b.cfg.Workers.Exited(ctx, id)
}

// CancelExited releases the channel ch that Exited returned for the container id.
func (b *Backend) CancelExited(id string, ch <-chan struct{}) { b.cfg.Workers.CancelExited(id, ch) }

// Exec requests an exec session from the runtime and returns the URL to connect to.
func (b *Backend) Exec(ctx context.Context, id string, o server.StreamOptions) (*url.URL, error) {
	resp, err := b.cfg.CRI.Runtime.Exec(ctx, &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: o.Command, Tty: o.TTY, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr,
	})
	if err != nil {
		return nil, errors.New(cri.Message(err))
	}
	return url.Parse(resp.Url)
}

// Checkpoint makes the runtime write a checkpoint of the container to the file of that name in the directory
// checkpoints of the kubelet, and returns its path. timeout is in seconds.
func (b *Backend) Checkpoint(ctx context.Context, id, file string, timeout int64) (string, error) {
	dir := filepath.Join(b.cfg.Root, "checkpoints")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("creating the checkpoint directory: %w", err)
	}
	path := filepath.Join(dir, file)
	_, err := b.cfg.CRI.Runtime.CheckpointContainer(ctx, &runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: path, Timeout: timeout})
	return path, err
}

// Attach requests an attach session from the runtime and returns the URL to connect to.
func (b *Backend) Attach(ctx context.Context, id string, o server.StreamOptions) (*url.URL, error) {
	resp, err := b.cfg.CRI.Runtime.Attach(ctx, &runtimeapi.AttachRequest{
		ContainerId: id, Tty: o.TTY, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr,
	})
	if err != nil {
		return nil, errors.New(cri.Message(err))
	}
	return url.Parse(resp.Url)
}

// PortForward requests a port-forward session for the pod's sandbox from the runtime and returns the URL to
// connect to.
func (b *Backend) PortForward(ctx context.Context, namespace, pod string, uid types.UID, ports []int32) (*url.URL, error) {
	box, err := b.cfg.Pods.Sandbox(namespace, pod, uid)
	if err != nil {
		return nil, notFound(err)
	}
	resp, err := b.cfg.CRI.Runtime.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: box, Port: ports})
	if err != nil {
		return nil, errors.New(cri.Message(err))
	}
	return url.Parse(resp.Url)
}

// Run runs a command in a container, without a timeout, and returns its output. An exit code other than 0 is an
// error.
func (b *Backend) Run(ctx context.Context, id string, cmd []string) ([]byte, error) {
	code, out, err := b.cfg.Exec(ctx, id, cmd, 0)
	if err != nil {
		return nil, err
	}
	if code != 0 {
		return nil, fmt.Errorf("command '%v' exited with %d: %s", cmd, code, out)
	}
	return out, nil
}

// Summary returns the resource usage of the node and its pods, including volumes and images.
func (b *Backend) Summary(ctx context.Context) (*statsv1alpha1.Summary, error) {
	out, err := b.cfg.Stats.Summary(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.cfg.Stats.SetImageUsage(ctx, out); err != nil {
		return nil, err
	}
	volumes := b.cfg.Volumes.All(ctx)
	for i := range out.Pods {
		out.Pods[i].VolumeStats = volumes[types.UID(out.Pods[i].PodRef.UID)]
	}
	return out, nil
}

// Configz returns the effective configuration for /configz.
func (b *Backend) Configz() any { return b.cfg.Configz() }

// Healthy returns an error until the pod workers have received events of the runtime for the first time. The
// server reports it at /healthz.
func (b *Backend) Healthy() error { return b.cfg.Workers.Healthy() }

// Metrics returns the gatherer of the metrics at the path which, or nil if there is none.
func (b *Backend) Metrics(which string) prometheus.Gatherer { return b.cfg.Metrics[which] }
