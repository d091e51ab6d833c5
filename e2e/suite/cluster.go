//go:build linux

// Package suite runs a module's tests against a cluster in new network and mount namespaces, and builds images for it.
//
// The modules beside this package use it. They are modules because the program must not depend on their libraries.
package suite

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const (
	// binaryEnv is the program under test. The tests are skipped if it is empty.
	binaryEnv = "HYPERKUBE_E2E"
	// rootEnv is set in the process that runs the tests in its own namespaces. Its value is the root of the cluster.
	rootEnv = "HYPERKUBE_SUITE_ROOT"
	// externalEnv, unless empty, makes the tests use the cluster of $KUBECONFIG.
	externalEnv = "HYPERKUBE_E2E_EXTERNAL"
)

// Cluster is the cluster under test.
type Cluster struct {
	Binary string // path of the program under test
	Root   string // its --root; empty for a cluster that was not started by Main
}

// Main runs the tests in new network and mount namespaces, in which start starts a cluster, and returns the exit code. The cluster
// is removed after the tests.
//
// If $HYPERKUBE_E2E is empty or $HYPERKUBE_E2E_EXTERNAL is not, Main runs the tests without starting a cluster.
func Main(m *testing.M, start func(Cluster) error) int {
	c := Cluster{Binary: os.Getenv(binaryEnv), Root: os.Getenv(rootEnv)}
	switch {
	case c.Binary == "", os.Getenv(externalEnv) != "":
		return m.Run()
	case c.Root == "":
		return inNamespaces()
	}
	// Whatever reset does not remove disappears with the namespaces.
	defer func() { _ = c.Hyperkube("reset", "--root", c.Root) }()
	if err := start(c); err != nil {
		fmt.Fprintf(os.Stderr, "starting a cluster: %v\n", err)
		return 1
	}
	return m.Run()
}

// Get returns the cluster that Main started. It skips the test if $HYPERKUBE_E2E is not set.
func Get(t *testing.T) Cluster {
	t.Helper()
	c := Cluster{Binary: os.Getenv(binaryEnv), Root: os.Getenv(rootEnv)}
	if c.Binary == "" {
		t.Skipf("$%s is not set", binaryEnv)
	}
	return c
}

// Hyperkube runs the program under test.
func (c Cluster) Hyperkube(args ...string) error {
	if out, err := exec.Command(c.Binary, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", args, err, out)
	}
	return nil
}

// EnableGateway enables the add-on gateway and waits until its pods are ready.
func (c Cluster) EnableGateway() error {
	return errors.Join(
		c.Hyperkube("addon", "--root", c.Root, "enable", "gateway"),
		c.Hyperkube("kubectl", "wait", "--for=create", "-n", "kube-system", "daemonset/hyperkube-gateway", "--timeout=60s"),
		c.Hyperkube("kubectl", "-n", "kube-system", "rollout", "status", "daemonset/hyperkube-gateway", "--timeout=120s"),
	)
}

// inNamespaces runs this program again in new namespaces and returns its exit code.
func inNamespaces() int {
	dir, err := os.MkdirTemp("", "suite-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	args := append([]string{"--net", "--mount", "sh", "-c", `ip link set lo up && exec "$0" "$@"`}, os.Args...)
	cmd := exec.Command("unshare", args...)
	cmd.Env = append(os.Environ(), rootEnv+"="+dir, "KUBECONFIG="+filepath.Join(dir, "kubeconfig"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
