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

	"hyperkube/internal/layout"
	"hyperkube/internal/pki"
)

// whole measures a cluster of `hyperkube up`.
func (b *bench) whole(ctx context.Context, n int) (err error) {
	dir, err := os.MkdirTemp("", "hyperkube-scale-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	config := filepath.Join(dir, "kubeconfig")
	command := func(name string) (time.Duration, error) {
		args := []string{name}
		if b.root != "" {
			args = append(args, "--root="+b.root)
		}
		cmd := exec.CommandContext(ctx, b.binary, args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+config)
		began := time.Now()
		out, err := cmd.CombinedOutput()
		if err != nil {
			return 0, fmt.Errorf("hyperkube %s: %w: %s", name, err, out)
		}
		if b.profile {
			fmt.Printf("%s", out)
		}
		return time.Since(began), nil
	}
	if _, err := command("reset"); err != nil {
		return err
	}
	defer func() {
		_, e := command("reset")
		err = errors.Join(err, e)
	}()
	if _, err := command("up"); err != nil {
		return err
	}
	rest, err := clientcmd.BuildConfigFromFlags("", config)
	if err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return err
	}
	l := layout.Default()
	if b.root != "" {
		l = layout.Under(b.root)
	}
	keys, err := pki.Load(l.PKI())
	if err != nil {
		return err
	}
	store, err := etcdClient(fmt.Sprintf("https://127.0.0.1:%d", layout.PortEtcdClient), keys)
	if err != nil {
		return err
	}
	defer store.Close()
	// No node has it: the cluster would take it away else.
	sample := samplePod()
	sample.Spec.NodeName = ""
	if err := makeSample(ctx, kube, sample); err != nil {
		return err
	}
	encoded, err := multiply(ctx, store, n, 1)
	if err != nil {
		return err
	}
	fmt.Printf("%d pods of %d bytes, up\n", n, encoded/n)
	tell := func(what string, after time.Duration) error {
		time.Sleep(after)
		text, err := os.ReadFile(l.PIDFile("hyperkube"))
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
			float64(u.anonymous)/float64(encoded), u.pss/1e6, u.cpu)
		if !b.profile {
			return nil
		}
		data, err := kube.CoreV1().RESTClient().Get().AbsPath("/debug/pprof/heap").DoRaw(ctx)
		if err != nil {
			return err
		}
		return os.WriteFile(fmt.Sprintf("heap-up-%d-%s.pprof", n, strings.ReplaceAll(what, " ", "-")), data, 0o644)
	}
	if err := tell("memory after writing", settle); err != nil {
		return err
	}
	if _, err := command("stop"); err != nil {
		return err
	}
	took, err := command("up")
	if err != nil {
		return err
	}
	fmt.Printf("  %-44s %v\n", "up again", took.Round(time.Millisecond))
	if err := tell("memory after that", settle); err != nil {
		return err
	}
	return tell("memory at rest", resting)
}
