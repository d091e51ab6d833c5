package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/internal/layout"
	"hyperkube/internal/testimage"
)

// How long TestChurn goes on, and what its schedule follows from.
const (
	churnRoundsEnv = "HYPERKUBE_E2E_CHURN_ROUNDS" // default 3
	churnSeedEnv   = "HYPERKUBE_E2E_CHURN_SEED"   // default one of its own
)

// churn is a cluster of two nodes under TestChurn.
type churn struct {
	*alone
	root  string
	nodes []layout.Node // the first is that of the main process
	names []string      // of the nodes
	kube  kubernetes.Interface
}

// victim is what is killed in a round.
type victim struct {
	node          int
	main, runtime bool
}

func (v victim) String() string {
	var what []string
	if v.main {
		what = append(what, "process")
	}
	if v.runtime {
		what = append(what, "runtime")
	}
	return fmt.Sprintf("%s of node %d", strings.Join(what, " and "), v.node+1)
}

// TestChurn kills a node's process (the first one's is the control plane, too),
// a container runtime, or both, while pods start, run, are probed and stopped.
// Who runs goes on undisturbed and loses no line of its log, exit codes that
// the runtime has seen are told, everybody becomes what was asked for, and
// nothing is left.
func TestChurn(t *testing.T) {
	rounds, seed := 3, uint64(time.Now().UnixNano())
	if n, err := strconv.Atoi(os.Getenv(churnRoundsEnv)); err == nil {
		rounds = n
	}
	if n, err := strconv.ParseUint(os.Getenv(churnSeedEnv), 10, 64); err == nil {
		seed = n
	}
	t.Logf("%d rounds, the seed is %d", rounds, seed)
	c := newChurn(t, 10*time.Minute+time.Duration(rounds)*2*time.Minute)
	for i := range c.nodes {
		if err := c.create(c.steady(i)); err != nil {
			t.Fatal(err)
		}
	}
	c.settled("", nil)
	before := c.steadyState()
	census := c.census()
	for round := range rounds {
		random := rand.New(rand.NewPCG(seed, uint64(round)))
		c.round(round, random)
		if after := c.steadyState(); after != before {
			t.Fatalf("round %d: who should run on was\n%s\nand is\n%s", round, before, after)
		}
		if t.Failed() {
			break
		}
	}
	c.emptied()
	var diff string
	(&space{T: t}).eventually(30*time.Second, func() error {
		if diff = census.diff(c.census()); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
	c.checkLogs()
}

func newChurn(t *testing.T, bound time.Duration) *churn {
	a := newAlone(t)
	var cancel context.CancelFunc
	a.ctx, cancel = context.WithTimeout(context.Background(), bound)
	t.Cleanup(cancel)
	c := &churn{alone: a, root: filepath.Join(a.dir, "r")}
	l := layout.Under(c.root)
	c.nodes = []layout.Node{l, l.Numbered(1)}
	t.Cleanup(func() {
		if t.Failed() {
			(&fleet{alone: a, root: c.root}).printLogs()
		}
		last := *a
		var cancel context.CancelFunc
		last.ctx, cancel = context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		if out, err := last.command(a.binary, "reset", "--root", c.root).CombinedOutput(); err != nil {
			t.Errorf("reset: %v\n%s", err, out)
		}
	})
	c.up("--nodes=2")
	archive := filepath.Join(a.dir, "busybox.tar")
	if err := testimage.WriteBusybox(archive, busybox); err != nil {
		t.Fatal(err)
	}
	a.hyperkube("image", "import", "--root", c.root, archive)
	rest, err := clientcmd.BuildConfigFromFlags("", filepath.Join(a.dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	rest.QPS, rest.Dial = -1, c.dial
	rest.Timeout = 30 * time.Second
	if c.kube, err = kubernetes.NewForConfig(rest); err != nil {
		t.Fatal(err)
	}
	list, err := c.kube.CoreV1().Nodes().List(a.ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list.Items {
		c.names = append(c.names, n.Name)
	}
	slices.SortFunc(c.names, func(a, b string) int { return len(a) - len(b) })
	_, err = c.kube.CoreV1().ConfigMaps("default").Create(a.ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "churn"}, Data: map[string]string{"key": "value"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// up starts what is not there of the cluster.
func (c *churn) up(args ...string) {
	c.t.Helper()
	c.hyperkube(append([]string{"up", "--root", c.root}, args...)...)
}

// dial opens a connection in the namespace.
func (c *churn) dial(ctx context.Context, network, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", c.holder), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			done <- result{nil, err}
			return
		}
		defer unix.Close(fd)
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			done <- result{nil, err}
			return
		}
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, address)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

// create makes a pod, however often the API is killed meanwhile.
func (c *churn) create(pod *corev1.Pod) error {
	for {
		_, err := c.kube.CoreV1().Pods("default").Create(c.ctx, pod, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) || apierrors.IsInvalid(err) || c.ctx.Err() != nil {
			if apierrors.IsAlreadyExists(err) {
				err = nil
			}
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (c *churn) again(try func() error) {
	c.t.Helper()
	(&space{T: c.t}).eventually(patience, try)
}

// shell is a pod of one container that runs a script.
func (c *churn) shell(name, node, script string) *corev1.Pod {
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"churn": strings.SplitN(name, "-", 2)[0]}},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "c", Image: busybox, ImagePullPolicy: corev1.PullNever, Command: []string{"sh", "-c", script}}},
		},
	}
}

func execProbe(period int32, cmd ...string) *corev1.Probe {
	return &corev1.Probe{PeriodSeconds: period, TimeoutSeconds: 5, FailureThreshold: 3, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: cmd}}}
}

// steady is a pod that nothing may disturb: it counts in its log.
func (c *churn) steady(node int) *corev1.Pod {
	p := c.shell(fmt.Sprintf("steady-%d", node+1), c.names[node], "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done")
	app := &p.Spec.Containers[0]
	app.LivenessProbe, app.ReadinessProbe = execProbe(1, "true"), execProbe(1, "test", "-e", "/config/key")
	always := corev1.ContainerRestartPolicyAlways
	p.Spec.InitContainers = []corev1.Container{
		{Name: "init", Image: busybox, ImagePullPolicy: corev1.PullNever, Command: []string{"true"}},
		{Name: "side", Image: busybox, ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "100000"}, RestartPolicy: &always},
	}
	c.volumes(p)
	return p
}

// volumes gives a pod one of each kind that is made of files and mounts.
func (c *churn) volumes(p *corev1.Pod) {
	size := resource.MustParse("1Mi")
	p.Spec.Volumes = []corev1.Volume{
		{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "churn"}}}},
		{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &size}}},
		{Name: "disk", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{
		{Name: "config", MountPath: "/config"}, {Name: "memory", MountPath: "/memory"}, {Name: "disk", MountPath: "/disk", SubPath: "sub"},
	}
}

// want is what becomes of a pod.
type want struct {
	pod *corev1.Pod
	// code is the exit code of one that ends; -1: it runs and is ready.
	code int32
	// loose: it may be restarted when its runtime is killed, for a hook that
	// was cut short.
	loose bool
}

// pods of a round.
func (c *churn) pods(round int, random *rand.Rand) (wants []want) {
	for i := range 8 {
		node := c.names[random.IntN(len(c.names))]
		name := func(kind string) string { return fmt.Sprintf("churn-%d-%d-%s", round, i, kind) }
		w := want{code: -1}
		switch random.IntN(7) {
		case 0:
			w.pod, w.code = c.shell(name("quick"), node, fmt.Sprintf("sleep 0.%d; exit 3", random.IntN(5))), 3
			w.pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		case 1:
			w.pod = c.shell(name("init"), node, "sleep 100000")
			for k := range 2 {
				w.pod.Spec.InitContainers = append(w.pod.Spec.InitContainers, corev1.Container{
					Name: fmt.Sprint("i", k), Image: busybox, ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "0.1"},
				})
			}
			w.pod.Spec.Containers[0].ReadinessProbe = execProbe(1, "true")
		case 2:
			always := corev1.ContainerRestartPolicyAlways
			w.pod, w.code = c.shell(name("side"), node, "sleep 0.2"), 0
			w.pod.Spec.RestartPolicy = corev1.RestartPolicyNever
			w.pod.Spec.InitContainers = []corev1.Container{{
				Name: "side", Image: busybox, ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "100000"}, RestartPolicy: &always,
				StartupProbe: execProbe(1, "true"),
			}}
		case 3:
			w.pod = c.shell(name("volumes"), node, "cat /config/key; sleep 100000")
			c.volumes(w.pod)
		case 4:
			w.pod, w.loose = c.shell(name("hooks"), node, "sleep 100000"), true
			hook := &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sleep", "0.1"}}}
			w.pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: hook, PreStop: hook}
		case 5:
			w.pod = c.shell(name("two"), node, "trap '' TERM; sleep 100000")
			second := *w.pod.Spec.Containers[0].DeepCopy()
			second.Name = "d"
			w.pod.Spec.Containers = append(w.pod.Spec.Containers, second)
			w.pod.Spec.Containers[0].LivenessProbe = execProbe(1, "true")
		case 6:
			w.pod = c.shell(name("port"), node, "mkdir /w; echo ok >/w/ok; exec httpd -f -p 80 -h /w")
			w.pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: int32(20000 + round*10 + i)}}
			w.pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, TimeoutSeconds: 5,
				ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ok", Port: intstr.FromInt32(80)}}}
		}
		wants = append(wants, w)
	}
	return wants
}

// round makes pods, kills in the middle of it, and sees what has come of them.
func (c *churn) round(round int, random *rand.Rand) {
	c.t.Helper()
	v := victim{node: random.IntN(3) % 2} // the first node's costs more time
	switch random.IntN(3) {
	case 0:
		v.main = true
	case 1:
		v.runtime = true
	case 2:
		v.main, v.runtime = true, true
	}
	pause := time.Duration(random.IntN(600)) * time.Millisecond
	c.t.Logf("round %d: %s after %s", round, v, pause)
	wants := c.pods(round, random)
	two := int32(2)
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("churn-%d", round)},
		Spec:       batchv1.JobSpec{Completions: &two, Parallelism: &two, Template: corev1.PodTemplateSpec{Spec: c.shell("x", "", "sleep 0.1").Spec}},
	}
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	if _, err := c.kube.BatchV1().Jobs("default").Create(c.ctx, job, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	created := make(chan error, 1)
	go func() {
		var errs []error
		defer func() { created <- errors.Join(errs...) }()
		for i, w := range wants {
			errs = append(errs, c.create(w.pod))
			if i > 4 { // some are stopped before they have begun
				time.Sleep(time.Duration(i) * 10 * time.Millisecond)
			}
		}
	}()
	time.Sleep(pause)
	killed := c.kill(v)
	if v.main {
		c.up()
	}
	if err := <-created; err != nil {
		c.t.Fatal(err)
	}
	if v.runtime {
		c.again(func() error {
			if pid := c.runtimePID(v.node); pid == 0 || slices.Contains(killed, pid) {
				return errors.New("the runtime was not started again")
			}
			return nil
		})
	}
	for _, w := range wants {
		touched := v.runtime && w.pod.Spec.NodeName == c.names[v.node]
		c.settled(w.pod.Name, func(p *corev1.Pod) error { return w.check(p, touched) })
	}
	c.again(func() error {
		j, err := c.kube.BatchV1().Jobs("default").Get(c.ctx, job.Name, metav1.GetOptions{})
		if err == nil && j.Status.Succeeded < two {
			err = fmt.Errorf("job %s: %+v", j.Name, j.Status)
		}
		return err
	})
	background := metav1.DeletePropagationBackground
	c.again(func() error {
		return errors.Join(
			c.kube.BatchV1().Jobs("default").DeleteCollection(c.ctx, metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{}),
			c.kube.CoreV1().Pods("default").DeleteCollection(c.ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "churn=churn"}))
	})
	if random.IntN(2) == 0 {
		c.emptied()
	} // else the next round's kill meets their end
}

// errWrong is what no waiting mends.
var errWrong = errors.New("wrong for good")

func (w want) check(p *corev1.Pod, touched bool) error {
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if s.RestartCount > 0 && w.code < 0 && !(touched && w.loose) {
			return fmt.Errorf("%w: container %s was restarted: %+v", errWrong, s.Name, s)
		}
	}
	if w.code < 0 {
		for _, cond := range p.Status.Conditions {
			if cond.Type == corev1.PodReady && cond.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("not ready: %+v", p.Status)
	}
	if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
		return fmt.Errorf("not ended: %+v", p.Status)
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.Name != "c" || s.State.Terminated == nil {
			continue
		}
		if got := s.State.Terminated.ExitCode; got != w.code && !(touched && got == 255) {
			return fmt.Errorf("%w: it ended %+v", errWrong, s.State.Terminated)
		}
		return nil
	}
	return fmt.Errorf("%w: it ended without its container: %+v", errWrong, p.Status)
}

// settled waits until a pod is as check wants it; all, when name is empty, and
// ready, when check is nil.
func (c *churn) settled(name string, check func(*corev1.Pod) error) {
	c.t.Helper()
	if check == nil {
		check = func(p *corev1.Pod) error { return want{code: -1}.check(p, false) }
	}
	var final error
	c.again(func() error {
		list, err := c.kube.CoreV1().Pods("default").List(c.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		found := false
		for i := range list.Items {
			p := &list.Items[i]
			if name != "" && p.Name != name {
				continue
			}
			found = true
			if err := check(p); errors.Is(err, errWrong) {
				final = fmt.Errorf("pod %s: %w", p.Name, err)
				return nil
			} else if err != nil {
				return fmt.Errorf("pod %s: %w", p.Name, err)
			}
		}
		if !found {
			return fmt.Errorf("no pod %s", name)
		}
		return nil
	})
	if final != nil {
		c.t.Error(final)
	}
}

// emptied waits until only the steady pods are left.
func (c *churn) emptied() {
	c.t.Helper()
	c.again(func() error {
		list, err := c.kube.CoreV1().Pods("default").List(c.ctx, metav1.ListOptions{LabelSelector: "churn!=steady"})
		if err == nil && len(list.Items) > 0 {
			var text []byte
			text, err = json.Marshal(list.Items[0].Status)
			err = errors.Join(err, fmt.Errorf("%d pods are left, such as %s: %s", len(list.Items), list.Items[0].Name, text))
		}
		return err
	})
}

// kill kills what v says, and tells whom.
func (c *churn) kill(v victim) (pids []int) {
	c.t.Helper()
	if v.main {
		pids = append(pids, c.pidFile(c.nodes[v.node].PIDFile("hyperkube")))
	}
	if v.runtime {
		pids = append(pids, c.runtimePID(v.node))
	}
	for _, pid := range pids {
		if pid == 0 {
			c.t.Fatalf("%s: it does not run", v)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			c.t.Fatal(err)
		}
	}
	return pids
}

func (c *churn) runtimePID(node int) int { return c.pidFile(c.nodes[node].PIDFile("runtime")) }

// pidFile reads the number of a process, 0 if there is none.
func (c *churn) pidFile(file string) int {
	data, _ := os.ReadFile(file)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(data)))
	return pid
}

// steadyState is all that must not change of the steady pods.
func (c *churn) steadyState() string {
	c.t.Helper()
	var out strings.Builder
	c.again(func() error {
		list, err := c.kube.CoreV1().Pods("default").List(c.ctx, metav1.ListOptions{LabelSelector: "churn=steady"})
		if err != nil {
			return err
		}
		out.Reset()
		for _, p := range list.Items {
			for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
				fmt.Fprintf(&out, "%s/%s: %s, %d restarts, %v, ready %t\n", p.Name, s.Name, s.ContainerID, s.RestartCount, s.State, s.Ready)
			}
		}
		return nil
	})
	return out.String()
}

// checkLogs sees that the steady pods' logs have every number once.
func (c *churn) checkLogs() {
	c.t.Helper()
	for i, n := range c.nodes {
		files, err := filepath.Glob(filepath.Join(n.PodLogs, fmt.Sprintf("default_steady-%d_*/c/0.log", i+1)))
		if err != nil || len(files) != 1 {
			c.t.Errorf("logs of node %d: %v, %v", i+1, files, err)
			continue
		}
		data, err := os.ReadFile(files[0])
		if err != nil {
			c.t.Error(err)
			continue
		}
		k := 0
		for line := range strings.Lines(string(data)) {
			k++
			if fields := strings.Fields(line); len(fields) != 4 || fields[3] != strconv.Itoa(k) {
				c.t.Errorf("line %d of the log of node %d is %q", k, i+1, line)
				break
			}
		}
		c.t.Logf("node %d: %d lines", i+1, k)
	}
}

// peers are the other ends of links, as numbers.
var peers = regexp.MustCompile(`@[^:]*`)

// census is all that pods leave traces in.
func (c *churn) census() host {
	c.t.Helper()
	h := host{}
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", c.holder))
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if point := strings.Fields(line)[4]; strings.HasPrefix(point, c.root) {
			h["mounts"] = append(h["mounts"], point)
		}
	}
	cgroups := strings.TrimPrefix(c.nodes[0].CgroupRoot, "/")
	hierarchies, _ := filepath.Glob("/sys/fs/cgroup/*/" + cgroups)
	for _, dir := range append(hierarchies, "/sys/fs/cgroup/"+cgroups) {
		_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() { // they come and go
				h["cgroups"] = append(h["cgroups"], path)
				data, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
				for pid := range strings.FieldsSeq(string(data)) {
					name, _ := os.ReadFile("/proc/" + pid + "/comm")
					// Runtimes and kubelets are others each time, and probes and
					// the counter's naps come and go.
					if !slices.Contains([]string{"sleep", "true", "test", "sh"}, strings.TrimSpace(string(name))) && !strings.HasPrefix(string(name), "hyperkube") && !strings.HasPrefix(string(name), "exe") {
						h["processes"] = append(h["processes"], pid+" "+string(name))
					}
				}
			}
			return nil
		})
	}
	for i, n := range c.nodes {
		words := []string{"ip", "-o", "link"}
		if i > 0 {
			words = append([]string{"nsenter", "--net=" + filepath.Join(n.Run, "netns")}, words...)
		}
		out, err := c.command(words[0], words[1:]...).Output()
		if err != nil {
			c.t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			if fields := strings.Fields(line); len(fields) > 1 {
				h["links"] = append(h["links"], fmt.Sprintf("node %d %s", i+1, peers.ReplaceAllString(fields[1], "")))
			}
		}
		for _, dir := range []string{
			filepath.Join(n.Runtime(), "sandboxes"), filepath.Join(n.Runtime(), "containers"), filepath.Join(n.RuntimeState(), "sandboxes"),
			filepath.Join(n.RuntimeState(), "containers"), filepath.Join(n.RuntimeState(), "addresses"), filepath.Join(n.RuntimeState(), "libcontainer"),
			filepath.Join(n.Kubelet, "pods"), n.PodLogs, n.ContainerLogs,
		} {
			entries, err := os.ReadDir(dir)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				c.t.Fatal(err)
			}
			for _, e := range entries {
				h["files"] = append(h["files"], filepath.Join(dir, e.Name()))
			}
		}
	}
	for name := range h {
		slices.Sort(h[name])
	}
	return h
}
