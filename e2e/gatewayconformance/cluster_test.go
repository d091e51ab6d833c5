//go:build linux

package gatewayconformance

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const (
	// rootEnv is set in the process that runs the tests in its own namespaces. Its value is the root of the cluster.
	rootEnv = "HYPERKUBE_GATEWAY_ROOT"
	// externalEnv, unless empty, makes the tests use the cluster of $KUBECONFIG, which must have the add-on gateway.
	externalEnv = "HYPERKUBE_E2E_EXTERNAL"
)

var (
	binary = os.Getenv("HYPERKUBE_E2E")
	root   = os.Getenv(rootEnv)
)

// TestMain runs the tests in a new network and mount namespace, in which it starts a cluster with the add-on gateway.
func TestMain(m *testing.M) {
	switch {
	case binary == "", os.Getenv(externalEnv) != "":
		os.Exit(m.Run())
	case root == "":
		os.Exit(inside())
	}
	os.Exit(func() int {
		defer func() { _ = run("reset", "--root", root) }() // what is left disappears with the namespaces
		if err := errors.Join(
			run("up", "--root", root),
			run("addon", "--root", root, "enable", "gateway"),
			run("kubectl", "wait", "--for=create", "-n", "kube-system", "daemonset/hyperkube-gateway", "--timeout=60s"),
			run("kubectl", "-n", "kube-system", "rollout", "status", "daemonset/hyperkube-gateway", "--timeout=120s"),
		); err != nil {
			fmt.Fprintf(os.Stderr, "starting a cluster: %v\n", err)
			return 1
		}
		return m.Run()
	}())
}

// run runs the program under test.
func run(args ...string) error {
	if out, err := exec.Command(binary, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", args, err, out)
	}
	return nil
}

// inside runs this program again in new namespaces and returns its exit code.
func inside() int {
	dir, err := os.MkdirTemp("", "gateway-")
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
