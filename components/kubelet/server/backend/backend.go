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

// Pods are the pods of the node. Its methods must be safe for concurrent use.
type Pods interface {
	// Pods returns all pods with their latest status.
	Pods() []*v1.Pod
	// Container returns a container. uid may be empty.
	Container(namespace, name string, uid types.UID, container string, previous bool) (*v1.Pod, podstate.Container, error)
	// Sandbox returns the ID of a pod's sandbox. uid may be empty.
	Sandbox(namespace, name string, uid types.UID) (string, error)
}

// Workers run the pods. Its methods must be safe for concurrent use.
type Workers interface {
	Exited(ctx context.Context, id string) <-chan struct{}
	CancelExited(id string, ch <-chan struct{})
	// Healthy returns an error if the workers cannot reach the runtime.
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

// Backend implements server.Backend.
type Backend struct{ cfg Config }

// New creates a Backend.
func New(cfg Config) *Backend { return &Backend{cfg: cfg} }

// notFound wraps err so that the server responds with 404 if the pod does not exist.
func notFound(err error) error {
	if errors.Is(err, pods.ErrNoPod) {
		return fmt.Errorf("%w: %w", err, server.ErrNotFound)
	}
	return err
}

// Pods implements server.Backend.
func (b *Backend) Pods() []*v1.Pod { return b.cfg.Pods.Pods() }

// RunningPods implements server.Backend.
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

// Container implements server.Backend.
func (b *Backend) Container(namespace, pod string, uid types.UID, container string, previous bool) (*v1.Pod, podstate.Container, error) {
	p, c, err := b.cfg.Pods.Container(namespace, pod, uid, container, previous)
	if err == nil && c.LogPath != "" && !filepath.IsAbs(c.LogPath) {
		c.LogPath = filepath.Join(b.cfg.LogDir(p), c.LogPath)
	}
	return p, c, notFound(err)
}

// Exited implements server.Backend.
func (b *Backend) Exited(ctx context.Context, id string) <-chan struct{} {
	return b.cfg.Workers.Exited(ctx, id)
}

// CancelExited implements server.Backend.
func (b *Backend) CancelExited(id string, ch <-chan struct{}) { b.cfg.Workers.CancelExited(id, ch) }

// Exec implements server.Backend.
func (b *Backend) Exec(ctx context.Context, id string, o server.StreamOptions) (*url.URL, error) {
	resp, err := b.cfg.CRI.Runtime.Exec(ctx, &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: o.Command, Tty: o.TTY, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr,
	})
	if err != nil {
		return nil, errors.New(cri.Message(err))
	}
	return url.Parse(resp.Url)
}

// Checkpoint implements server.Backend.
func (b *Backend) Checkpoint(ctx context.Context, id, file string, timeout int64) (string, error) {
	dir := filepath.Join(b.cfg.Root, "checkpoints")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("creating the checkpoint directory: %w", err)
	}
	path := filepath.Join(dir, file)
	_, err := b.cfg.CRI.Runtime.CheckpointContainer(ctx, &runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: path, Timeout: timeout})
	return path, err
}

// Attach implements server.Backend.
func (b *Backend) Attach(ctx context.Context, id string, o server.StreamOptions) (*url.URL, error) {
	resp, err := b.cfg.CRI.Runtime.Attach(ctx, &runtimeapi.AttachRequest{
		ContainerId: id, Tty: o.TTY, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr,
	})
	if err != nil {
		return nil, errors.New(cri.Message(err))
	}
	return url.Parse(resp.Url)
}

// PortForward implements server.Backend.
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

// Run implements server.Backend.
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

// Summary implements server.Backend.
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

// Configz implements server.Backend.
func (b *Backend) Configz() any { return b.cfg.Configz() }

// Healthy implements server.Backend.
func (b *Backend) Healthy() error { return b.cfg.Workers.Healthy() }

// Metrics implements server.Backend.
func (b *Backend) Metrics(which string) prometheus.Gatherer { return b.cfg.Metrics[which] }
