package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// windowsEnv, if set to "all", makes TestWindows kill all victims in each window. By default, it
// kills one in some windows.
const windowsEnv = "HYPERKUBE_E2E_WINDOWS"

// windows is a cluster whose processes are killed at specific points.
type windows struct {
	*churn
	orders  io.WriteCloser
	answers *bufio.Scanner
}

// window is a point at which a victim is killed.
type window struct {
	name string
	// at is the killer's command without the PID files. If the command depends on the pod, at is
	// empty and order returns it.
	at string
	// pod modifies the pod of the window. The window starts when the pod is created, or with atEnd,
	// when it is deleted.
	pod   func(w *windows, p *corev1.Pod, victim string)
	atEnd bool
	// order returns the killer's command for a running pod, and during then starts the window.
	order  func(w *windows, p *corev1.Pod) string
	during func(w *windows, p *corev1.Pod)
	// then checks the pod after it has become ready.
	then func(w *windows, p *corev1.Pod) error
	// devices is true if the kubelet may reject a pod that is created before the plugin has
	// registered with the restarted kubelet.
	devices bool
}

var windowTable = []window{
	{name: "sandbox", order: func(w *windows, _ *corev1.Pod) string {
		return "create " + filepath.Join(w.nodes[0].RuntimeState(), "sandboxes")
	}, pod: func(*windows, *corev1.Pod, string) {}},
	{name: "container", order: func(w *windows, _ *corev1.Pod) string {
		return "create " + filepath.Join(w.nodes[0].Runtime(), "containers")
	}, pod: func(*windows, *corev1.Pod, string) {}},
	{name: "pull", at: "call blob", pod: func(_ *windows, p *corev1.Pod, victim string) {
		p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = killerImages+"/tool:"+victim, corev1.PullAlways
	}},
	{name: "stage", at: "call NodeStageVolume", pod: withVolume},
	{name: "publish", at: "call NodePublishVolume", pod: withVolume},
	{name: "expand", at: "call NodeExpandVolume", pod: withGrownVolume, then: grown},
	{name: "unpublish", at: "call NodeUnpublishVolume", pod: withVolume, atEnd: true},
	{name: "unstage", at: "call NodeUnstageVolume", pod: withVolume, atEnd: true},
	{name: "allocate", at: "call Allocate", pod: withDevices, devices: true},
	{name: "prestart", at: "call PreStartContainer", pod: withDevices, devices: true},
	{name: "prepare", at: "call Prepare", pod: withClaim},
	{name: "unprepare", at: "call Unprepare", pod: withClaim, atEnd: true},
	{name: "prestop", order: func(w *windows, _ *corev1.Pod) string { return "create " + w.marks() }, atEnd: true, pod: func(w *windows, p *corev1.Pod, _ string) {
		grace := int64(5)
		p.Spec.TerminationGracePeriodSeconds = &grace
		p.Spec.Volumes = []corev1.Volume{{Name: "marks", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: w.marks()}}}}
		c := &p.Spec.Containers[0]
		c.VolumeMounts = []corev1.VolumeMount{{Name: "marks", MountPath: "/marks"}}
		c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "touch /marks/" + p.Name + "; sleep 0.5"}}}}
	}},
	{name: "resize", pod: func(_ *windows, p *corev1.Pod, _ string) {
		p.Spec.Containers[0].Resources = quarter("100m")
	}, order: func(w *windows, p *corev1.Pod) string { return "write " + w.cpuFile(p) }, during: func(w *windows, p *corev1.Pod) {
		patch := `{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"200m"},"limits":{"cpu":"200m"}}}]}}`
		if _, err := w.kube.CoreV1().Pods("default").Patch(w.ctx, p.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "resize"); err != nil {
			w.t.Fatal(err)
		}
	}, then: resized},
}

func quarter(cpu string) corev1.ResourceRequirements {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("32Mi")}
	return corev1.ResourceRequirements{Limits: list, Requests: list}
}

// withVolume adds a volume of the CSI driver to a pod.
func withVolume(w *windows, p *corev1.Pod, _ string) { w.volume(p, "1Mi") }

// withGrownVolume adds a volume that was expanded while no pod used it.
func withGrownVolume(w *windows, p *corev1.Pod, _ string) { w.volume(p, "2Mi") }

func (w *windows) volume(p *corev1.Pod, grown string) {
	w.apply(fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s}
spec:
  capacity: {storage: 1Mi}
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  persistentVolumeReclaimPolicy: Retain
  claimRef: {namespace: default, name: %[1]s}
  csi: {driver: %[2]s, volumeHandle: %[1]s, fsType: ext4}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeName: %[1]s, resources: {requests: {storage: 1Mi}}}
`, p.Name, killerCSI))
	w.kubectl("wait", "pvc/"+p.Name, "--for=jsonpath={.status.phase}=Bound", "--timeout=180s")
	if grown != "1Mi" {
		w.kubectl("patch", "pv", p.Name, "-p", `{"spec":{"capacity":{"storage":"`+grown+`"}}}`)
	}
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: p.Name}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
}

func grown(w *windows, p *corev1.Pod) error {
	claim, err := w.kube.CoreV1().PersistentVolumeClaims("default").Get(w.ctx, p.Name, metav1.GetOptions{})
	if err == nil && claim.Status.Capacity.Storage().String() != "2Mi" {
		err = fmt.Errorf("the claim has %s", claim.Status.Capacity.Storage())
	}
	return err
}

// withDevices makes a pod request all devices of the plugin, and fail without them: none may leak.
// It first waits until another pod had them, because the Node's status may be outdated.
func withDevices(w *windows, p *corev1.Pod, _ string) {
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{killerDevice: resource.MustParse("2")}
	p.Spec.Containers[0].Command[2] = "test -c /dev/thing || exit 9; " + p.Spec.Containers[0].Command[2]
	first := p.DeepCopy()
	first.Name += "-first"
	w.again(func() error {
		if err := w.create(first); err != nil {
			return err
		}
		there, err := w.kube.CoreV1().Pods("default").Get(w.ctx, first.Name, metav1.GetOptions{})
		if err == nil && turnedAway(there) {
			err = w.kube.CoreV1().Pods("default").Delete(w.ctx, first.Name, metav1.DeleteOptions{})
		}
		if err == nil && there.Status.Phase != corev1.PodRunning {
			err = fmt.Errorf("pod %s is %s", first.Name, there.Status.Phase)
		}
		return err
	})
	w.settled(first.Name, nil)
	w.remove(first.Name)
	w.gone(first.Name)
}

// turnedAway reports whether the kubelet rejected a pod because the device plugin has not
// registered yet.
func turnedAway(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed && p.Status.Reason == "UnexpectedAdmissionError" &&
		strings.Contains(p.Status.Message, "no healthy devices present; cannot allocate unhealthy devices "+killerDevice)
}

// withClaim adds a claim for the driver's only device.
func withClaim(_ *windows, p *corev1.Pod, _ string) {
	template := "one"
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "d", ResourceClaimTemplateName: &template}}
	p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "d"}}
}

// cpuFile returns the file with the CPU limit of a container's cgroup.
func (w *windows) cpuFile(p *corev1.Pod) string {
	w.t.Helper()
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	root := strings.TrimPrefix(w.nodes[0].CgroupRoot, "/")
	out := w.sh("find /sys/fs/cgroup/cpu/" + root + " /sys/fs/cgroup/" + root + " -path '*" + id + "*' '(' -name cpu.cfs_quota_us -o -name cpu.max ')' 2>/dev/null | head -n 1; true")
	if out = strings.TrimSpace(out); out == "" {
		w.t.Fatalf("container %s has no cgroup", id)
	}
	return out
}

func resized(w *windows, p *corev1.Pod) error {
	s := p.Status.ContainerStatuses[0]
	if s.Resources == nil || s.Resources.Limits.Cpu().String() != "200m" || condition(p, corev1.PodResizeInProgress) != nil {
		return fmt.Errorf("it has %+v, %+v", s.Resources, p.Status.Conditions)
	}
	data, err := os.ReadFile(w.cpuFile(p))
	if err == nil && strings.Fields(string(data))[0] != "20000" {
		err = fmt.Errorf("its cgroup contains %q", data)
	}
	return err
}

// marks returns a directory that is mounted in pods.
func (w *windows) marks() string { return filepath.Join(w.dir, "marks") }

// TestWindows kills the node's process, the container runtime or both at the moment at which they
// have started an operation with another component. The state must be recovered, no container may
// be restarted, and nothing may be left behind.
func TestWindows(t *testing.T) {
	t.Parallel()
	var manifests string
	w := &windows{churn: newChurn(t, 30*time.Minute, 1, func(a *alone) []string {
		manifests = filepath.Join(a.dir, "manifests")
		file := filepath.Join(a.dir, "kubelet.yaml")
		config := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nstaticPodPath: " + manifests + lowDiskConfig
		if err := errors.Join(os.Mkdir(manifests, 0o755), os.Mkdir(filepath.Join(a.dir, "marks"), 0o755), os.WriteFile(file, []byte(config), 0o644)); err != nil {
			t.Fatal(err)
		}
		return []string{"--kubelet-config=" + file}
	})}
	w.startKiller()
	w.apply(`
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: ` + killerCSI + `}
spec: {attachRequired: false}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: ` + killerDRA + `}
spec: {selectors: [{cel: {expression: 'device.driver == "` + killerDRA + `"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: ` + killerDRA + `}}]}}}
`)
	if err := w.create(w.steady(0)); err != nil {
		t.Fatal(err)
	}
	w.settled("", nil)
	before, census := w.steadyState(), w.leftovers()
	victims := []string{"main", "runtime", "both"}
	for i, win := range windowTable {
		those := victims
		if os.Getenv(windowsEnv) != "all" {
			if i%3 != 0 {
				continue
			}
			those = victims[i/3%3 : i/3%3+1]
		}
		for _, victim := range those {
			t.Run(win.name+" "+victim, func(t *testing.T) { w.in(t).window(win, victim, before) })
		}
	}
	if os.Getenv(windowsEnv) != "all" {
		victims = victims[:1]
	}
	for _, victim := range victims {
		t.Run("static "+victim, func(t *testing.T) { w.in(t).static(manifests, victim) })
	}
	w.emptied()
	w.nothingLeft(census)
	w.checkLogs()
}

// in returns a copy of w for a subtest.
func (w *windows) in(t *testing.T) *windows {
	a, c, sub := *w.alone, *w.churn, *w
	a.t = t
	c.alone, sub.churn = &a, &c
	return &sub
}

func (w *windows) startKiller() {
	w.t.Helper()
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := w.command(self)
	cmd.Env = append(cmd.Env, killerEnv+"="+w.root, killerNodeEnv+"="+w.names[0])
	said, err := os.Create(filepath.Join(w.dir, "killer.log"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer said.Close()
	cmd.Stderr = said
	if w.orders, err = cmd.StdinPipe(); err != nil {
		w.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.answers = bufio.NewScanner(out)
	w.t.Cleanup(func() {
		_ = w.orders.Close()
		_ = cmd.Wait()
		if data, err := os.ReadFile(said.Name()); w.t.Failed() {
			w.t.Logf("the killer printed %v\n%s", err, data)
		}
	})
	w.answer("ready")
	w.again(func() error {
		node, err := w.kube.CoreV1().Nodes().Get(w.ctx, w.names[0], metav1.GetOptions{})
		if err == nil && node.Status.Allocatable.Name(killerDevice, resource.DecimalSI).Value() != 2 {
			err = errors.New("the devices are not registered")
		}
		return err
	})
	w.kubectl("wait", "csinode/"+w.names[0], "--for=jsonpath={.spec.drivers[0].name}="+killerCSI, "--timeout=180s")
}

// order sends a command to the killer; answer waits for its response.
func (w *windows) order(line string) {
	w.t.Helper()
	if _, err := io.WriteString(w.orders, line+"\n"); err != nil {
		w.t.Fatal(err)
	}
}

func (w *windows) answer(want string) {
	w.t.Helper()
	got := make(chan string, 1)
	go func() {
		if w.answers.Scan() {
			got <- w.answers.Text()
		}
		close(got)
	}()
	select {
	case line := <-got:
		if line != want {
			w.t.Fatalf("the killer printed %q, want %q", line, want)
		}
	case <-time.After(2 * minTimeout):
		w.t.Fatalf("the killer did not print %q", want)
	}
}

// files returns the PID files of a victim.
func (w *windows) files(victim string) string {
	var out []string
	if victim != "runtime" {
		out = append(out, w.nodes[0].PIDFile("hyperkube"))
	}
	if victim != "main" {
		out = append(out, w.nodes[0].PIDFile("runtime"))
	}
	return strings.Join(out, " ")
}

// window creates a pod, lets the killer kill the victim, and checks the result.
func (w *windows) window(win window, victim, steady string) {
	p := w.shell("window-"+win.name+"-"+victim, "", "sleep 100000")
	p.Labels["churn"] = "churn"
	win.pod(w, p, victim)
	line := win.at
	atStart := !win.atEnd && win.during == nil
	if atStart && win.order != nil {
		line = win.order(w, p)
	}
	arm := func() {
		w.order(line + " " + w.files(victim))
		w.answer("armed")
	}
	if atStart {
		arm()
	}
	if err := w.create(p); err != nil {
		w.t.Fatal(err)
	}
	if !atStart {
		w.settled(p.Name, nil)
		running, err := w.kube.CoreV1().Pods("default").Get(w.ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
		if win.order != nil {
			line = win.order(w, running)
		}
		arm()
		if win.atEnd {
			w.remove(p.Name)
		} else {
			win.during(w, running)
		}
	}
	old := w.runtimePID(0)
	w.answer("killed")
	w.revive(victim, old)
	if !win.atEnd {
		w.settled(p.Name, func(p *corev1.Pod) error {
			if win.devices && victim != "runtime" && turnedAway(p) {
				return nil
			}
			err := want{code: -1}.check(p, victim != "main")
			if err == nil && win.then != nil {
				err = win.then(w, p)
			}
			return err
		})
		w.remove(p.Name)
	}
	w.gone(p.Name)
	if after := w.steadyState(); after != steady {
		w.t.Errorf("steady pods were\n%s\nand are\n%s", steady, after)
	}
}

// remove deletes a pod. It retries while the API server is down.
func (w *windows) remove(name string) {
	w.t.Helper()
	w.again(func() error {
		err := w.kube.CoreV1().Pods("default").Delete(w.ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// gone waits until a pod is deleted.
func (w *windows) gone(name string) {
	w.t.Helper()
	w.again(func() error {
		_, err := w.kube.CoreV1().Pods("default").Get(w.ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, fmt.Errorf("pod %s still exists", name))
	})
}

// revive starts the victim, or waits until it was restarted.
func (w *windows) revive(victim string, old int) {
	w.t.Helper()
	if victim != "runtime" {
		w.up()
	}
	if victim != "main" {
		w.again(func() error {
			if pid := w.runtimePID(0); pid == 0 || pid == old {
				return errors.New("the runtime was not restarted")
			}
			return nil
		})
	}
}

// static changes a static pod and kills the victim meanwhile: finally one pod with the new manifest
// must run.
func (w *windows) static(dir, victim string) {
	manifest := func(step int) {
		text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: still, labels: {churn: churn}}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n"+
			"  - {name: c, image: %q, imagePullPolicy: Never, command: [sleep, '10000%d']}\n", busybox, step)
		if err := os.WriteFile(filepath.Join(dir, ".still"), []byte(text), 0o644); err != nil {
			w.t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, ".still"), filepath.Join(dir, "still.yaml")); err != nil {
			w.t.Fatal(err)
		}
	}
	runs := func(step int) {
		w.settled("still-"+w.names[0], func(p *corev1.Pod) error {
			if got := p.Spec.Containers[0].Command[1]; got != fmt.Sprint(10000, step) && got != fmt.Sprintf("10000%d", step) {
				return fmt.Errorf("it runs %s", got)
			}
			return want{code: -1}.check(p, false)
		})
	}
	manifest(1)
	runs(1)
	old := w.runtimePID(0)
	w.order("create " + filepath.Join(w.nodes[0].RuntimeState(), "sandboxes") + " " + w.files(victim))
	w.answer("armed")
	manifest(2)
	w.answer("killed")
	w.revive(victim, old)
	runs(2)
	if err := os.Remove(filepath.Join(dir, "still.yaml")); err != nil {
		w.t.Fatal(err)
	}
	w.emptied()
}

// nothingLeft compares the machine with census, and checks that the drivers hold nothing of deleted
// pods.
func (w *windows) nothingLeft(census host) {
	w.t.Helper()
	w.again(func() error {
		if diff := census.diff(w.leftovers()); diff != "" {
			return errors.New(diff)
		}
		data, err := os.ReadFile(filepath.Join(w.nodes[0].Kubelet, "device-plugins", "kubelet_internal_checkpoint"))
		if err != nil {
			return err
		}
		var checkpoint struct {
			Data struct{ PodDeviceEntries []json.RawMessage }
		}
		if err := json.Unmarshal(data, &checkpoint); err != nil || len(checkpoint.Data.PodDeviceEntries) > 0 {
			return fmt.Errorf("devices of deleted pods: %w: %s", err, data)
		}
		for _, dir := range []string{"plugins/kubernetes.io/csi/" + killerCSI, "plugins/kubernetes.io/csi/volumeDevices"} {
			if left, _ := os.ReadDir(filepath.Join(w.nodes[0].Kubelet, dir)); len(left) > 0 {
				return fmt.Errorf("%s has %v", dir, left)
			}
		}
		return nil
	})
	w.order("left")
	w.answer("left 0")
}
