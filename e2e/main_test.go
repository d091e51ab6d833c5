// Package e2e tests running clusters on this kernel: real containers, real
// packets, real kills. It needs root and the program to test in
// $HYPERKUBE_E2E; without that it tests nothing. What it changes on the host is
// taken back, and that is tested, too.
//
// With $HYPERKUBE_E2E_APART_ONLY set the cluster that most tests share is not
// started, and only those run that have one of their own elsewhere: they can be
// worked on while the usual places of the machine are in use.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// cluster is the one that most tests share. It is started by TestMain and is
// in the usual places.
type cluster struct {
	binary     string // the program
	kubeconfig string
	kubectl    string // a stock kubectl if the machine has one, else ours
	kube       kubernetes.Interface
	dir        string // for files of the tests
}

var shared *cluster

func TestMain(m *testing.M) {
	binary := os.Getenv("HYPERKUBE_E2E")
	if binary == "" {
		fmt.Println("e2e: $HYPERKUBE_E2E is not set: nothing is tested (make e2e)")
		os.Exit(0)
	}
	if os.Getenv("HYPERKUBE_E2E_APART_ONLY") != "" {
		os.Setenv("KUBE_CACHE_MUTATION_DETECTOR", "true")
		os.Exit(m.Run())
	}
	os.Exit(run(m, binary))
}

func run(m *testing.M, binary string) int {
	if os.Geteuid() != 0 {
		fmt.Println("e2e: needs root")
		return 1
	}
	if _, err := os.Stat("/var/lib/hyperkube/cluster.json"); err == nil {
		fmt.Println("e2e: this machine has a cluster: take it away with hyperkube reset")
		return 1
	}
	dir, err := os.MkdirTemp("", "hyperkube-e2e-")
	if err != nil {
		fmt.Println("e2e:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	before, err := snapshotHost()
	if err != nil {
		fmt.Println("e2e:", err)
		return 1
	}
	os.Setenv("KUBECONFIG", filepath.Join(dir, "kubeconfig"))
	os.Setenv("KUBE_CACHE_MUTATION_DETECTOR", "true")
	c := &cluster{binary: binary, kubeconfig: filepath.Join(dir, "kubeconfig"), dir: dir}
	code := 1
	if err := c.up(); err != nil {
		fmt.Println("e2e: up:", err)
		c.printLog()
	} else {
		shared = c
		code = m.Run()
		if code != 0 {
			c.printLog()
		}
	}
	if out, err := exec.Command(binary, "reset").CombinedOutput(); err != nil {
		fmt.Printf("e2e: reset: %v\n%s", err, out)
		code = 1
	}
	after, err := snapshotHost()
	if err != nil {
		fmt.Println("e2e:", err)
		return 1
	}
	if diff := before.diff(after); diff != "" {
		fmt.Println("e2e: the host is not as it was before:\n" + diff)
		code = 1
	}
	return code
}

// up starts the cluster and connects to it.
func (c *cluster) up(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, c.binary, append([]string{"up"}, args...)...).CombinedOutput()
	fmt.Print(string(out))
	if err != nil {
		return err
	}
	rest, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		return err
	}
	rest.QPS = -1
	if c.kube, err = kubernetes.NewForConfig(rest); err != nil {
		return err
	}
	c.kubectl = filepath.Join(filepath.Dir(c.binary), "kubectl")
	for _, stock := range []string{"/usr/bin/kubectl", "/usr/local/bin/kubectl"} {
		if target, err := filepath.EvalSymlinks(stock); err == nil && !strings.Contains(target, "hyperkube") {
			c.kubectl = stock
			break
		}
	}
	return nil
}

// printLog shows the end of the logs, for who looks at a failed run.
func (c *cluster) printLog() {
	for _, name := range []string{"hyperkube", "runtime"} {
		data, err := os.ReadFile("/var/lib/hyperkube/logs/" + name + ".log")
		if err != nil {
			continue
		}
		if len(data) > 8000 {
			data = data[len(data)-8000:]
		}
		fmt.Printf("--- %s.log\n%s\n", name, data)
	}
}
