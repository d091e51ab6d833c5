package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/internal/testing/testwait"
)

// cluster is the cluster that most tests share. TestMain starts it. It uses the default paths.
type cluster struct {
	binary     string // path of the program
	kubeconfig string
	kubectl    string // path of upstream's kubectl if it is installed, otherwise of ours
	kube       kubernetes.Interface
	dir        string     // for files of the tests
	busybox    *sync.Once // imports the image busybox; up renews it, because the cluster may be a new one
}

var shared *cluster

func TestMain(m *testing.M) {
	if binary := os.Getenv(guardEnv); binary != "" {
		os.Exit(beGuard(binary))
	}
	if root := os.Getenv(killerEnv); root != "" {
		os.Exit(beKiller(root))
	}
	binary := os.Getenv("HYPERKUBE_E2E")
	if binary == "" {
		fmt.Println("e2e: $HYPERKUBE_E2E is not set: nothing is tested (make e2e)")
		os.Exit(0)
	}
	os.Exit(runTests(m, binary, os.Getenv("HYPERKUBE_E2E_APART_ONLY") == ""))
}

// runTests runs all tests. If usual is set, it starts the shared cluster.
func runTests(m *testing.M, binary string, usual bool) (code int) {
	if os.Geteuid() != 0 {
		fmt.Println("e2e: needs root")
		return 1
	}
	var err error
	if current, err = beginRun(binary, usual); err != nil {
		fmt.Println("e2e:", err)
		return 1
	}
	defer func() {
		if err := current.end(); err != nil {
			fmt.Println("e2e:", err)
			code = 1
		}
	}()
	os.Setenv("KUBE_CACHE_MUTATION_DETECTOR", "true")
	if !usual {
		return m.Run()
	}
	if _, err := os.Stat("/var/lib/hyperkube/cluster.json"); err == nil {
		fmt.Println("e2e: this machine has a cluster: remove it with hyperkube reset")
		return 1
	}
	file := filepath.Join(current.Dir, "kubeconfig")
	os.Setenv("KUBECONFIG", file)
	c := &cluster{binary: binary, kubeconfig: file, dir: current.Dir}
	code = 1
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
	if diff := current.settle(minTimeout); diff != "" {
		fmt.Println("e2e: the host differs from its state before the tests:\n" + diff)
		code = 1
	}
	return code
}

// up starts the cluster and creates the test's API client.
func (c *cluster) up(args ...string) error {
	c.busybox = new(sync.Once)
	ctx, cancel := context.WithTimeout(context.Background(), max(5*time.Minute, testwait.Scale(time.Minute)))
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
			// Until recently, upstream's WebSocket client could lose data that arrived before its
			// streams were created.
			os.Setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
			break
		}
	}
	return nil
}

// printLog prints the end of the logs of a failed run.
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
