// Command bench measures a cluster of this program on this machine and prints the figures that
// docs/development/performance.md contains. It needs root. It removes an existing cluster, and leaves none
// behind. With -part api it measures only the API server, which needs no root and changes nothing.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/runtimeclient"
	"hyperkube/internal/testing/testimage"
)

func main() {
	binary := flag.String("binary", "bin/hyperkube", "Path to the program to measure.")
	idle := flag.Duration("idle", time.Minute, "Duration of the measurement of the idle cluster.")
	pods := flag.Int("pods", 50, "Number of pods to start one by one, and in a Deployment.")
	full := flag.Int("full", 200, "Number of pods that fill the node; 0 disables this.")
	root := flag.String("root", "", "Root directory of the cluster instead of the default paths.")
	part := flag.String("part", "all", "What to measure: all, cluster, node (only the runtime and the full node of the cluster) or api.")
	slice := flag.Duration("api-slice", time.Second, "Duration of one measurement of an API server operation.")
	rounds := flag.Int("api-rounds", 5, "Number of measurements of each operation.")
	peer := flag.String("api-server", "", "Path to a kube-apiserver to measure instead of this program's.")
	only := flag.String("api-only", "", "Comma-separated list of operations to measure; empty means all.")
	profiles := flag.String("api-profiles", "", "Directory for CPU profiles of the API server for each operation, and for memory profiles at the end.")
	flag.Parse()
	path, err := filepath.Abs(*binary)
	if err == nil && *part != "cluster" && *part != "node" {
		api := &apiBench{binary: path, peer: *peer, slice: *slice, rounds: max(1, *rounds), profiles: *profiles}
		if err = api.choose(*only); err == nil {
			err = api.run(context.Background())
		}
	}
	if err == nil && *part != "api" {
		err = (&bench{binary: path, root: *root, idle: *idle, pods: *pods, full: *full, nodeOnly: *part == "node"}).run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench measures a whole cluster. Its fields are the flags of the command, and the client of the cluster.
type bench struct {
	binary, root string
	idle         time.Duration
	pods, full   int
	nodeOnly     bool
	kube         kubernetes.Interface
}

// run starts a cluster twice, runs the measurements on the second one, and removes it. nodeOnly restricts the
// measurements to the runtime and a full node.
func (b *bench) run(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "hyperkube-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Setenv("KUBECONFIG", filepath.Join(dir, "kubeconfig")); err != nil {
		return err
	}
	config, err := b.kubeletConfig(dir)
	if err != nil {
		return err
	}
	if err := b.command("reset"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.command("reset")) }()
	// The first run loads the program into the page cache, as any previous run would. The second
	// run, which is measured, starts with an empty disk.
	for _, round := range []string{"first run", "empty disk"} {
		began := time.Now()
		if err := b.command("up", "--kubelet-config="+config); err != nil {
			return err
		}
		fmt.Printf("up, %s, to a ready node and a running pod (DNS): %v\n", round, time.Since(began).Round(time.Millisecond))
		if round == "first run" {
			if err := b.command("reset"); err != nil {
				return err
			}
		}
	}
	archive := filepath.Join(dir, "busybox.tar")
	if err := testimage.WriteBusybox(archive, "busybox:bench"); err != nil {
		return err
	}
	if err := b.command("image", "import", archive); err != nil {
		return err
	}
	rest, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	rest.QPS = -1
	if b.kube, err = kubernetes.NewForConfig(rest); err != nil {
		return err
	}
	time.Sleep(10 * time.Second)
	steps := []func(context.Context) error{b.atRest, b.starts, b.podByPod, b.deployment, b.startsAgain, b.afterRemovals, b.fullNode}
	if b.nodeOnly {
		steps = []func(context.Context) error{b.starts, b.afterRemovals, b.fullNode}
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// command runs hyperkube with a subcommand, on the cluster in root if that is set. The error contains the output.
func (b *bench) command(args ...string) error {
	if b.root != "" {
		args = append([]string{args[0], "--root=" + b.root}, args[1:]...)
		if args[0] == "image" {
			args = append(append([]string{"image"}, args[2:]...), args[1])
		}
	}
	cmd := exec.Command(b.binary, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("hyperkube %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// pod returns a pod with one container that sleeps. It is killed immediately when it is deleted.
func pod(name string) *corev1.Pod {
	zero := int64(0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "bench"}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &zero,
			Containers:                    []corev1.Container{{Name: "c", Image: "busybox:bench", Command: []string{"sleep", "3600"}}},
		},
	}
}

// podByPod measures the time from the create request to the watch event with phase Running.
func (b *bench) podByPod(ctx context.Context) error {
	pods := b.kube.CoreV1().Pods("default")
	var took []time.Duration
	for i := range b.pods {
		name := fmt.Sprintf("one-%d", i)
		w, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil {
			return err
		}
		began := time.Now()
		if _, err := pods.Create(ctx, pod(name), metav1.CreateOptions{}); err != nil {
			return err
		}
		for e := range w.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok && e.Type != watch.Deleted && p.Status.Phase == corev1.PodRunning {
				break
			}
		}
		took = append(took, time.Since(began))
		w.Stop()
		if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	fmt.Printf("pod create to Running as a watch sees it, %d pods: %s\n", len(took), spread(took))
	return nil
}

// deployment measures the time until all pods of a Deployment are ready, and the memory that a pod adds. It then
// deletes them.
func (b *bench) deployment(ctx context.Context) error {
	deployments := b.kube.AppsV1().Deployments("default")
	n := int32(b.pods)
	template := pod("")
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "many"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: template.Labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: template.Labels}, Spec: template.Spec},
		},
	}
	w, err := deployments.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=many"})
	if err != nil {
		return err
	}
	defer w.Stop()
	before := b.processes()
	began := time.Now()
	if _, err := deployments.Create(ctx, d, metav1.CreateOptions{}); err != nil {
		return err
	}
	for e := range w.ResultChan() {
		if d, ok := e.Object.(*appsv1.Deployment); ok && d.Status.ReadyReplicas == n {
			break
		}
	}
	fmt.Printf("Deployment of %d, to all ready: %v\n", n, time.Since(began).Round(time.Millisecond))
	time.Sleep(5 * time.Second)
	after := b.processes()
	fmt.Printf("memory that a pod adds in the project's processes: %.2f MB PSS\n", float64(after.pss()-before.pss())/1e3/float64(n))
	if err := deployments.Delete(ctx, "many", metav1.DeleteOptions{}); err != nil {
		return err
	}
	return b.emptied(ctx)
}

// emptied waits until the pods of the last measurement are deleted, so that their deletion does not
// affect the next one.
func (b *bench) emptied(ctx context.Context) error {
	for {
		pods, err := b.kube.CoreV1().Pods("default").List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return err
		}
		if len(pods.Items) == 0 {
			return nil
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// starts measures the runtime on a node on which nothing has been removed yet.
func (b *bench) starts(ctx context.Context) error {
	return b.runtime(ctx, "bench", "")
}

// startsAgain measures the runtime again after many pods were deleted. For a minute, ext4 skips
// each freed inode for each inode that it allocates.
func (b *bench) startsAgain(ctx context.Context) error {
	return b.runtime(ctx, "bench-again", ", many pods having gone")
}

// runtime measures the creation and start of containers, and commands in the last container, with
// CRI requests only. name is the sandbox's name, and when is added to the output.
func (b *bench) runtime(ctx context.Context, name, when string) error {
	client, err := runtimeclient.Dial(b.layout().RuntimeSocket())
	if err != nil {
		return err
	}
	defer client.Close()
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name},
		LogDirectory: os.TempDir(), Linux: &runtimeapi.LinuxPodSandboxConfig{},
	}
	began := time.Now()
	s, err := client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: sandbox})
	if err != nil {
		return err
	}
	fmt.Printf("sandbox in the runtime%s: %v\n", when, time.Since(began).Round(100*time.Microsecond))
	defer func() {
		_, _ = client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.PodSandboxId})
		_, _ = client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.PodSandboxId})
	}()
	var took []time.Duration
	var last string
	for i := range 20 {
		began := time.Now()
		c, err := client.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
			PodSandboxId: s.PodSandboxId, SandboxConfig: sandbox,
			Config: &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: fmt.Sprintf("c%d", i)},
				Image:    &runtimeapi.ImageSpec{Image: "busybox:bench"},
				Command:  []string{"sleep", "3600"}, LogPath: fmt.Sprintf("bench-%d.log", i),
				Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
					// Like the kubelet; by default a container would share the pod's PID namespace.
					NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
				}},
			},
		})
		if err != nil {
			return err
		}
		if _, err := client.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
			return err
		}
		took, last = append(took, time.Since(began)), c.ContainerId
		os.Remove(filepath.Join(os.TempDir(), fmt.Sprintf("bench-%d.log", i)))
	}
	fmt.Printf("container create plus start in the runtime, %d%s: %s\n", len(took), when, spread(took))
	return b.execs(ctx, client, last)
}

// spread returns the 50th, 90th and 99th percentile of durations as text. It sorts them.
func spread(took []time.Duration) string {
	slices.Sort(took)
	at := func(p int) time.Duration {
		return took[min(len(took)*p/100, len(took)-1)].Round(100 * time.Microsecond)
	}
	return fmt.Sprintf("p50 %v, p90 %v, p99 %v", at(50), at(90), at(99))
}

// process is a process of the project, with memory in kilobytes and CPU time in seconds.
type process struct {
	pid           int
	name          string
	pssKB, anonKB int
	cpu           float64
}

// processes are processes of the project at one time.
type processes []process

// pss returns the sum of the proportional set sizes in kilobytes.
func (p processes) pss() (sum int) {
	for _, one := range p {
		sum += one.pssKB
	}
	return sum
}

// processes returns the project's processes: this program, its runtime, and the pods of the
// built-in image.
func (b *bench) processes() processes {
	var out processes
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		cmdline, _ := os.ReadFile(dir + "/cmdline")
		words := strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
		base := filepath.Base(words[0])
		if !strings.HasPrefix(base, "hyperkube") && base != "pause" {
			continue
		}
		p := process{name: base}
		p.pid, _ = strconv.Atoi(filepath.Base(dir))
		if !b.mine(p.pid, words) {
			continue
		}
		if len(words) > 1 && !strings.HasPrefix(words[1], "-") {
			p.name += " " + words[1]
		}
		rollup, _ := os.ReadFile(dir + "/smaps_rollup")
		for line := range strings.SplitSeq(string(rollup), "\n") {
			fields := strings.Fields(line)
			if len(fields) == 3 && fields[0] == "Pss:" {
				p.pssKB, _ = strconv.Atoi(fields[1])
			} else if len(fields) == 3 && fields[0] == "Anonymous:" {
				p.anonKB, _ = strconv.Atoi(fields[1])
			}
		}
		stat, _ := os.ReadFile(dir + "/stat")
		if i := bytes.LastIndexByte(stat, ')'); i > 0 {
			fields := strings.Fields(string(stat[i+1:]))
			if len(fields) > 12 {
				user, _ := strconv.ParseFloat(fields[11], 64)
				system, _ := strconv.ParseFloat(fields[12], 64)
				p.cpu = (user + system) / 100
			}
		}
		out = append(out, p)
	}
	return out
}

// atRest measures the memory and CPU usage of the project's processes over the duration idle, and prints it by process
// name.
func (b *bench) atRest(context.Context) error {
	before := map[int]float64{}
	for _, p := range b.processes() {
		before[p.pid] = p.cpu
	}
	time.Sleep(b.idle)
	type sum struct {
		count, pssKB, anonKB int
		cpu                  float64
	}
	sums := map[string]*sum{}
	var names []string
	for _, p := range b.processes() {
		for _, name := range []string{p.name, "all"} {
			if sums[name] == nil {
				sums[name] = &sum{}
				names = append(names, name)
			}
			s := sums[name]
			s.count, s.pssKB, s.anonKB = s.count+1, s.pssKB+p.pssKB, s.anonKB+p.anonKB
			s.cpu += (p.cpu - before[p.pid]) / b.idle.Seconds() * 100
		}
	}
	fmt.Printf("at rest, over %v:\n", b.idle)
	sort.SliceStable(names, func(i, j int) bool { return names[i] != "all" && names[j] == "all" })
	for _, name := range names {
		s := sums[name]
		label := name
		if s.count > 1 && name != "all" {
			label = fmt.Sprintf("%d %s", s.count, name)
		}
		fmt.Printf("  %-24s %7.1f MB PSS %7.1f MB anonymous %6.2f %% of a core\n", label, float64(s.pssKB)/1e3, float64(s.anonKB)/1e3, s.cpu)
	}
	return nil
}
