package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/runtimeclient"
	"hyperkube/internal/host/layout"
)

// layout returns the paths of the cluster's node.
func (b *bench) layout() layout.Node {
	if b.root == "" {
		return layout.Default()
	}
	return layout.Under(b.root)
}

// mine reports whether a process belongs to the measured cluster, because there may be others. words is its command
// line. Without root, all processes do.
func (b *bench) mine(pid int, words []string) bool {
	if b.root == "" {
		return true
	}
	for _, w := range words {
		if strings.Contains(w, b.root) {
			return true
		}
	}
	groups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return strings.Contains(string(groups), b.layout().CgroupRoot+"/")
}

// kubeletConfig writes a kubelet configuration with a larger pod limit.
func (b *bench) kubeletConfig(dir string) (string, error) {
	file := filepath.Join(dir, "kubelet.yaml")
	text := fmt.Sprintf("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: %d\n", b.full+50)
	return file, os.WriteFile(file, []byte(text), 0o600)
}

// execs measures commands in a container with CRI requests only. It returns an error if a command fails.
func (b *bench) execs(ctx context.Context, client *runtimeclient.Client, container string) error {
	var took []time.Duration
	for range 30 {
		began := time.Now()
		r, err := client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: container, Cmd: []string{"true"}, Timeout: 10})
		if err != nil {
			return err
		}
		if r.ExitCode != 0 {
			return fmt.Errorf("command exited with code %d", r.ExitCode)
		}
		took = append(took, time.Since(began))
	}
	fmt.Printf("command in a container of the runtime, %d: %s\n", len(took), spread(took))
	return nil
}

// afterRemovals measures the creation of sandboxes while fifty others are removed.
func (b *bench) afterRemovals(ctx context.Context) error {
	client, err := runtimeclient.Dial(b.layout().RuntimeSocket())
	if err != nil {
		return err
	}
	defer client.Close()
	run := func(name string) (string, error) {
		r, err := client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name}, Linux: &runtimeapi.LinuxPodSandboxConfig{},
		}})
		return r.GetPodSandboxId(), err
	}
	var took []time.Duration
	for round := range 5 {
		var ids []string
		for i := range 50 {
			id, err := run(fmt.Sprintf("removed-%d-%d", round, i))
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		errs := make([]error, len(ids))
		var wait sync.WaitGroup
		for i, id := range ids {
			wait.Go(func() {
				_, errs[i] = client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
			})
		}
		began := time.Now()
		id, err := run(fmt.Sprintf("late-%d", round))
		took = append(took, time.Since(began))
		wait.Wait()
		_, removed := client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
		if err := errors.Join(append(errs, err, removed)...); err != nil {
			return err
		}
	}
	fmt.Printf("sandbox in the runtime while 50 others are removed, %d: %s\n", len(took), spread(took))
	return nil
}

// fullNode measures a node full of idle pods, and the restart of its runtime. It does nothing if full is zero.
func (b *bench) fullNode(ctx context.Context) error {
	n := int32(b.full)
	if n == 0 {
		return nil
	}
	template := pod("")
	template.Labels = map[string]string{"app": "full"}
	template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{}
	deployments := b.kube.AppsV1().Deployments("default")
	began := time.Now()
	_, err := deployments.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "full"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: template.Labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: template.Labels}, Spec: template.Spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	w, err := deployments.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=full"})
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if d, ok := e.Object.(*appsv1.Deployment); ok && d.Status.ReadyReplicas == n {
			break
		}
	}
	fmt.Printf("Deployment of %d, to all ready: %v\n", n, time.Since(began).Round(time.Millisecond))
	time.Sleep(20 * time.Second)
	if err := b.atRest(ctx); err != nil {
		return err
	}
	if err := b.killRuntime(ctx); err != nil {
		return err
	}
	if err := deployments.Delete(ctx, "full", metav1.DeleteOptions{}); err != nil {
		return err
	}
	return b.emptied(ctx)
}

// killRuntime kills the container runtime and measures the time until a new one lists its containers. It returns an
// error after a minute.
func (b *bench) killRuntime(ctx context.Context) error {
	file := b.layout().PIDFile("runtime")
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return err
	}
	began := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	for {
		data, _ := os.ReadFile(file)
		if now, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil && now != pid {
			client, err := runtimeclient.Dial(b.layout().RuntimeSocket())
			if err != nil {
				return err
			}
			list, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
				State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}}})
			client.Close()
			if err == nil {
				fmt.Printf("runtime restarted after kill, with %d running containers, after %v\n", len(list.Containers), time.Since(began).Round(time.Millisecond))
				return nil
			}
		}
		if time.Since(began) > time.Minute {
			return errors.New("the runtime was killed and did not restart")
		}
		time.Sleep(time.Millisecond)
	}
}
