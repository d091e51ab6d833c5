package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/host/layout"
)

// whole measures a cluster of `hyperkube up` with n pods: its memory, and the duration of another start. It removes an
// existing cluster before, and the cluster afterwards.
func (b *bench) whole(ctx context.Context, n int) (err error) {
	dir, err := os.MkdirTemp("", "hyperkube-scale-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c := &upCluster{bench: b, config: filepath.Join(dir, "kubeconfig"), layout: layout.Default(), pods: n}
	if b.root != "" {
		c.layout = layout.Under(b.root)
	}
	if _, err := c.command(ctx, "reset"); err != nil {
		return err
	}
	defer func() {
		_, e := c.command(ctx, "reset")
		err = errors.Join(err, e)
	}()
	if _, err := c.command(ctx, "up"); err != nil {
		return err
	}
	if err := c.fill(ctx); err != nil {
		return err
	}
	if err := c.printUsage(ctx, "memory after writing", settle); err != nil {
		return err
	}
	if _, err := c.command(ctx, "stop"); err != nil {
		return err
	}
	took, err := c.command(ctx, "up")
	if err != nil {
		return err
	}
	fmt.Printf("  %-44s %v\n", "up again", took.Round(time.Millisecond))
	if err := c.printUsage(ctx, "memory after that", settle); err != nil {
		return err
	}
	return c.printUsage(ctx, "memory at rest", resting)
}

// upCluster is a cluster of `hyperkube up`.
type upCluster struct {
	*bench
	config string // path of the kubeconfig
	layout layout.Node
	// pods is the number of pods, encoded the total size of their values in bytes.
	pods, encoded int
	kube          kubernetes.Interface
}

// command runs hyperkube and returns the duration. The error contains the output.
func (c *upCluster) command(ctx context.Context, name string) (time.Duration, error) {
	args := []string{name}
	if c.root != "" {
		args = append(args, "--root="+c.root)
	}
	cmd := exec.CommandContext(ctx, c.binary, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.config)
	began := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("hyperkube %s: %w: %s", name, err, out)
	}
	if c.profile {
		fmt.Printf("%s", out)
	}
	return time.Since(began), nil
}

// fill creates the pods: a sample with the API server, and copies of it directly in etcd.
func (c *upCluster) fill(ctx context.Context) error {
	rest, err := clientcmd.BuildConfigFromFlags("", c.config)
	if err != nil {
		return err
	}
	if c.kube, err = kubernetes.NewForConfig(rest); err != nil {
		return err
	}
	keys, err := pki.Load(c.layout.PKI())
	if err != nil {
		return err
	}
	store, err := etcdClient(fmt.Sprintf("https://127.0.0.1:%d", layout.PortEtcdClient), keys)
	if err != nil {
		return err
	}
	defer store.Close()
	// The pods have no node, because the pod garbage collector would delete pods on missing nodes.
	sample := samplePod()
	sample.Spec.NodeName = ""
	if err := makeSample(ctx, c.kube, sample); err != nil {
		return err
	}
	if c.encoded, err = multiply(ctx, store, c.pods, 1); err != nil {
		return err
	}
	fmt.Printf("%d pods of %d bytes, up\n", c.pods, c.encoded/c.pods)
	return nil
}

// printUsage prints the usage of the main process after a delay.
func (c *upCluster) printUsage(ctx context.Context, what string, after time.Duration) error {
	time.Sleep(after)
	text, err := os.ReadFile(c.layout.PIDFile("hyperkube"))
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	u, err := usageOf(pid)
	if err != nil {
		return err
	}
	fmt.Printf("  %-44s %v, %.2f times the encoded pods; %d MB PSS; CPU so far %v\n", what, u,
		float64(u.anonymous)/float64(c.encoded), u.pss/1e6, u.cpu)
	if !c.profile {
		return nil
	}
	data, err := c.kube.CoreV1().RESTClient().Get().AbsPath("/debug/pprof/heap").DoRaw(ctx)
	if err != nil {
		return err
	}
	return os.WriteFile(fmt.Sprintf("heap-up-%d-%s.pprof", c.pods, strings.ReplaceAll(what, " ", "-")), data, 0o644)
}
