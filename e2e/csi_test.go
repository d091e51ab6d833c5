package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"hyperkube/internal/testing/testcsi"
)

// TestNodeVolumes: CSI drivers, block devices, subPath links, and mounts that containers create.
func TestNodeVolumes(t *testing.T) {
	newSpace(t).needBusybox()
	t.Run("CSI", func(t *testing.T) { t.Parallel(); newSpace(t).driver() })
	t.Run("block", func(t *testing.T) { t.Parallel(); newSpace(t).block() })
	t.Run("subPath", func(t *testing.T) { t.Parallel(); newSpace(t).subPathAttack() })
	t.Run("propagation", func(t *testing.T) { t.Parallel(); newSpace(t).propagation() })
	t.Run("trust", func(t *testing.T) { t.Parallel(); newSpace(t).trust() })
	t.Run("read-only", func(t *testing.T) { t.Parallel(); newSpace(t).recursiveReadOnly() })
}

// volumeOf returns the manifest of a volume of the driver with a claim that is bound to it.
func (s *space) volumeOf(driver, name, mode string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s-%[3]s}
spec:
  capacity: {storage: 1Mi}
  accessModes: [ReadWriteOnce]
  volumeMode: %[4]s
  storageClassName: ""
  persistentVolumeReclaimPolicy: Retain
  claimRef: {namespace: %[1]s, name: %[3]s}
  csi: {driver: %[2]s, volumeHandle: %[3]s, fsType: ext4}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[3]s}
spec: {accessModes: [ReadWriteOnce], volumeMode: %[4]s, storageClassName: "", volumeName: %[1]s-%[3]s, resources: {requests: {storage: 1Mi}}}
---
`, s.name, driver, name, mode)
}

func (s *space) driver() {
	name := s.name + ".example.com"
	node := s.do("get", "node", "-o", "jsonpath={.items[0].metadata.name}")
	d := &testcsi.Driver{
		Name: name, NodeID: "here", Dir: s.TempDir(), Max: 3, Topology: map[string]string{"topology." + name + "/zone": "a"},
		Capabilities: []csipb.NodeServiceCapability_RPC_Type{csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS, csipb.NodeServiceCapability_RPC_EXPAND_VOLUME},
	}
	var small atomic.Bool
	d.Fail = func(method, volume string) error {
		if small.Load() && method == "NodeExpandVolume" {
			return status.Error(codes.OutOfRange, "too small")
		}
		return nil
	}
	socket := filepath.Join("/var/lib/kubelet/plugins_registry", name+"-reg.sock")
	registered, stop, err := d.Serve(socket)
	if err != nil {
		s.Fatal(err)
	}
	stopped := false
	s.Cleanup(func() {
		if !stopped {
			stop()
		}
	})
	s.registered(registered)
	s.apply(`
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: ` + name + `}
spec: {attachRequired: true, podInfoOnMount: true, fsGroupPolicy: File, volumeLifecycleModes: [Persistent, Ephemeral]}
`)
	s.Cleanup(func() { s.do("delete", "csidriver", name) })
	if got := s.do("get", "csinode", node, "-o", `jsonpath={.spec.drivers[?(@.name=="`+name+`")]}`); !strings.Contains(got, `"count":3`) || !strings.Contains(got, `"nodeID":"here"`) {
		s.Errorf("CSINode: %s", got)
	}
	s.contains(s.do("get", "node", node, "--show-labels"), "topology."+name+"/zone=a")

	// The test marks volumes as attached, like a driver's external attacher.
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	go s.attach(ctx, name)
	s.apply(s.volumeOf(name, "v", "Filesystem") + s.volumeOf(name, "b", "Block"))
	s.do("wait", "pvc/v", "--for=jsonpath={.status.phase}=Bound", "--timeout=180s")
	// The volume was expanded by the controller before the pod was created: only node expansion
	// remains.
	s.do("patch", "pv", s.name+"-v", "-p", `{"spec":{"capacity":{"storage":"2Mi"}}}`)
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 0
  securityContext: {fsGroup: 2000}
  volumes:
  - {name: v, persistentVolumeClaim: {claimName: v}}
  - {name: b, persistentVolumeClaim: {claimName: b}}
  - {name: inline, csi: {driver: ` + name + `, volumeAttributes: {colour: green}}}
  containers:
  - name: c
    image: ` + busybox + `
    command: [sleep, "3600"]
    volumeMounts: [{name: v, mountPath: /v}, {name: inline, mountPath: /inline, readOnly: true}]
    volumeDevices: [{name: b, devicePath: /dev/block}]
`)
	s.do("wait", "--for=condition=Ready", "pod/p", "--timeout=180s")
	got := s.exec("p", "echo x > /v/file; stat -c %g /v/file; cat /inline/context; echo device > /dev/block; head -c 6 /dev/block")
	s.contains(got, "2000", "colour=green", "csi.storage.k8s.io/ephemeral=true", "csi.storage.k8s.io/pod.name=p", "device")
	if data, err := os.ReadFile(filepath.Join(d.Dir, "v", "file")); string(data) != "x\n" {
		s.Errorf("the driver's volume: %q %v", data, err)
	}
	if size := s.do("get", "pvc", "v", "-o", "jsonpath={.status.capacity.storage}"); size != "2Mi" {
		s.Errorf("the claim's size: %s", size)
	}
	s.grows(&small)
	if used := s.do("get", "node", node, "-o", "jsonpath={.status.volumesInUse}"); !strings.Contains(used, name+"^v") || !strings.Contains(used, name+"^b") {
		s.Errorf("volumes in use: %s", used)
	}
	s.contains(s.do("get", "--raw", "/api/v1/nodes/"+node+"/proxy/metrics"),
		`kubelet_volume_stats_capacity_bytes{namespace="`+s.name+`",persistentvolumeclaim="v"} 1000`)
	s.contains(s.do("get", "--raw", "/api/v1/nodes/"+node+"/proxy/stats/summary"), `"pvcRef"`)
	s.do("delete", "pod", "p")
	s.eventually(20*time.Second, func() error {
		list, err := s.kube.StorageV1().VolumeAttachments().List(s.ctx, metav1.ListOptions{})
		if err == nil {
			for i := range list.Items {
				if list.Items[i].Spec.Attacher == name {
					err = errors.New("still attached")
				}
			}
		}
		return err
	})
	var calls []string
	for _, c := range d.Calls("v") {
		calls = append(calls, c.Method)
	}
	calls = slices.Compact(slices.DeleteFunc(calls, func(m string) bool { return m == "NodeGetVolumeStats" }))
	if got := strings.Join(calls, " "); got != "NodeStageVolume NodePublishVolume NodeExpandVolume NodeUnpublishVolume NodeUnstageVolume" {
		s.Errorf("calls: %s", got)
	}
	for _, v := range []string{"v", "b"} {
		s.do("delete", "pvc", v)
		s.do("delete", "pv", s.name+"-"+v)
	}
	stop()
	stopped = true
	s.eventually(10*time.Second, func() error {
		if got := s.do("get", "csinode", node, "-o", "jsonpath={.spec.drivers[*].name}"); strings.Contains(got, name) {
			return errors.New("the driver is still registered: " + got)
		}
		return nil
	})
}

// grows: a volume in use is expanded on the node after the test, as the external resizer, has done
// its part. The driver fails first, and the resizer starts again.
func (s *space) grows(small *atomic.Bool) {
	const state = "jsonpath={.status.allocatedResourceStatuses.storage}"
	pending := func() {
		s.do("patch", "pvc", "v", "--subresource=status", "--type=merge", "-p", `{"status":{"allocatedResources":{"storage":"3Mi"},"allocatedResourceStatuses":{"storage":"NodeResizePending"},
			"conditions":[{"type":"FileSystemResizePending","status":"True"}]}}`)
	}
	small.Store(true)
	pending()
	s.do("patch", "pv", s.name+"-v", "-p", `{"spec":{"capacity":{"storage":"3Mi"}}}`)
	s.eventually(time.Minute, func() error {
		if got := s.do("get", "pvc", "v", "-o", state); got != "NodeResizeInfeasible" {
			return errors.New("state of the expansion: " + got)
		}
		return nil
	})
	s.contains(s.do("get", "pvc", "v", "-o", "jsonpath={.status.conditions}"), "NodeResizeError", "failed to expand pvc with Expander.NodeExpand failed to expand the volume rpc error: code = OutOfRange desc = too small")
	s.contains(s.do("get", "events"), "VolumeResizeFailed", "NodeExpandVolume.NodeExpandVolume failed for volume")
	small.Store(false)
	pending()
	s.do("wait", "pvc/v", "--for=jsonpath={.status.capacity.storage}=3Mi", "--timeout=180s")
	if left := s.do("get", "pvc", "v", "-o", "jsonpath={.status.allocatedResourceStatuses}{.status.conditions[*].type}"); left != "Unused" {
		s.Errorf("status after the expansion: %s", left)
	}
}

func (s *space) registered(status <-chan *registerapi.RegistrationStatus) {
	s.Helper()
	select {
	case st := <-status:
		if !st.PluginRegistered {
			s.Fatal(st.Error)
		}
	case <-time.After(minTimeout):
		s.Fatal("the kubelet does not register the driver")
	}
}

// attach marks all VolumeAttachments of the driver as attached, until ctx is canceled.
func (s *space) attach(ctx context.Context, driver string) {
	w, err := s.kube.StorageV1().VolumeAttachments().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	defer w.Stop()
	list, err := s.kube.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	attach := func(attacher, name string, attached bool) {
		if attacher == driver && !attached {
			_, _ = s.kube.StorageV1().VolumeAttachments().Patch(ctx, name, types.MergePatchType, []byte(`{"status":{"attached":true}}`), metav1.PatchOptions{}, "status")
		}
	}
	for _, a := range list.Items {
		attach(a.Spec.Attacher, a.Name, a.Status.Attached)
	}
	for ev := range w.ResultChan() {
		if a, ok := ev.Object.(interface {
			metav1.Object
		}); ok && ev.Type == "ADDED" {
			attach(driver, a.GetName(), false)
		}
	}
}

// block: local volumes of a loop device, as a block device and with a file system that is created
// on it.
func (s *space) block() {
	device := func(name string) string {
		file := filepath.Join(s.TempDir(), name)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			s.Fatal(err)
		}
		if err := os.Truncate(file, 4<<20); err != nil {
			s.Fatal(err)
		}
		out, err := exec.Command("losetup", "--show", "-f", file).Output()
		if err != nil {
			s.Skip("no loop devices: ", err)
		}
		loop := strings.TrimSpace(string(out))
		s.Cleanup(func() {
			if out, err := exec.Command("losetup", "-d", loop).CombinedOutput(); err != nil {
				s.Errorf("%v: %s", err, out)
			}
		})
		return loop
	}
	local := func(name, mode, path string) string {
		return fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s-%[2]s}
spec:
  capacity: {storage: 1Mi}
  accessModes: [ReadWriteOnce]
  volumeMode: %[3]s
  storageClassName: ""
  claimRef: {namespace: %[1]s, name: %[2]s}
  local: {path: %[4]s}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/os, operator: In, values: [linux]}]}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[2]s}
spec: {accessModes: [ReadWriteOnce], volumeMode: %[3]s, storageClassName: "", volumeName: %[1]s-%[2]s, resources: {requests: {storage: 1Mi}}}
---
`, s.name, name, mode, path)
	}
	raw, fs := device("raw"), device("fs")
	s.apply(local("raw", "Block", raw) + local("fs", "Filesystem", fs) + `
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 0
  volumes:
  - {name: raw, persistentVolumeClaim: {claimName: raw}}
  - {name: fs, persistentVolumeClaim: {claimName: fs}}
  containers:
  - name: c
    image: ` + busybox + `
    command: [sleep, "3600"]
    volumeMounts: [{name: fs, mountPath: /fs}]
    volumeDevices: [{name: raw, devicePath: /dev/raw}]
`)
	s.do("wait", "--for=condition=Ready", "pod/p", "--timeout=180s")
	s.contains(s.exec("p", "echo hello > /dev/raw; sync; head -c 6 /dev/raw; echo kept > /fs/file; grep ' /fs ' /proc/mounts"), "hello", "/fs ext4")
	s.do("delete", "pod", "p")
	if data, err := os.ReadFile(raw); err != nil || !strings.HasPrefix(string(data), "hello\n") {
		s.Errorf("the device: %v", err)
	}
	for _, v := range []string{"raw", "fs"} {
		s.do("delete", "pvc", v)
		s.do("delete", "pv", s.name+"-"+v)
	}
}

// subPathAttack: a container repeatedly replaces the directory that another container mounts with a
// symlink to the host's root directory.
func (s *space) subPathAttack() {
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 0
  restartPolicy: Always
  volumes: [{name: v, emptyDir: {}}]
  containers:
  - name: attacker
    image: ` + busybox + `
    command: [sh, -c, "cd /v; mkdir -p real; while :; do rm -rf sub; ln -s / sub; ln -sfn ../../../../../../.. sub/x 2>/dev/null; rm -f sub; mkdir -p sub; done"]
    volumeMounts: [{name: v, mountPath: /v}]
  - name: victim
    image: ` + busybox + `
    command: [sh, -c, "ls -a /mnt; test ! -e /mnt/etc; test ! -e /mnt/proc"]
    volumeMounts: [{name: v, mountPath: /mnt, subPath: sub}]
  - name: plain
    image: ` + busybox + `
    command: [sh, -c, "ln -s /etc /v/link; sleep 3600"]
    volumeMounts: [{name: v, mountPath: /v}]
`)
	// The container must never see the host's files, however often it starts.
	s.eventually(30*time.Second, func() error {
		out := s.do("get", "pod", "p", "-o", `jsonpath={.status.containerStatuses[?(@.name=="victim")]}`)
		if strings.Contains(out, `"exitCode":1,`) {
			s.Fatalf("the container has accessed the host: %s", out)
		}
		// If the directory was removed meanwhile, the mount and the start fail.
		if !strings.Contains(out, `"exitCode":0`) && !strings.Contains(out, `"exitCode":128`) && !strings.Contains(out, "CreateContainerConfigError") {
			return errors.New(out)
		}
		return nil
	})
	s.do("delete", "pod", "p")
}

// propagation: a mount of one container is visible to containers that enable mount propagation.
func (s *space) propagation() {
	dir := s.TempDir()
	if err := exec.Command("mount", "--bind", dir, dir).Run(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = exec.Command("umount", "-l", dir).Run() })
	if err := exec.Command("mount", "--make-rshared", dir).Run(); err != nil {
		s.Fatal(err)
	}
	one := func(name, mode string, privileged bool) string {
		return fmt.Sprintf(`
  - {name: %s, image: %s, command: [sleep, "3600"], securityContext: {privileged: %v}, volumeMounts: [{name: v, mountPath: /v, mountPropagation: %s}]}`, name, busybox, privileged, mode)
	}
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: v, hostPath: {path: ` + dir + `}}]
  containers:` + one("both", "Bidirectional", true) + one("slave", "HostToContainer", false) + one("private", "None", false))
	s.do("wait", "--for=condition=Ready", "pod/p", "--timeout=180s")
	s.do("exec", "p", "-c", "both", "--", "sh", "-c", "mkdir -p /v/m && mount -t tmpfs none /v/m && touch /v/m/file")
	if out := s.do("exec", "p", "-c", "slave", "--", "ls", "/v/m"); out != "file" && out != "file\n" {
		s.Errorf("HostToContainer: %q", out)
	}
	if out := s.do("exec", "p", "-c", "private", "--", "ls", "/v/m"); strings.TrimSpace(out) != "" {
		s.Errorf("None: %q", out)
	}
	if _, err := os.Stat(filepath.Join(dir, "m", "file")); err != nil {
		s.Errorf("the host: %v", err)
	}
	s.do("delete", "pod", "p")
	if err := exec.Command("umount", filepath.Join(dir, "m")).Run(); err != nil {
		s.Errorf("the mount was removed with the pod: %v", err)
	}
}

// recursiveReadOnly: mounts below a recursively read-only volume are read-only as well.
func (s *space) recursiveReadOnly() {
	dir := s.TempDir()
	sub := filepath.Join(dir, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		s.Fatal(err)
	}
	if err := exec.Command("mount", "-t", "tmpfs", "none", sub).Run(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = exec.Command("umount", "-l", sub).Run() })
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: v, hostPath: {path: ` + dir + `, type: Directory}}]
  containers:
  - name: c
    image: ` + busybox + `
    command: [sleep, "3600"]
    volumeMounts:
    - {name: v, mountPath: /plain, readOnly: true}
    - {name: v, mountPath: /all, readOnly: true, recursiveReadOnly: Enabled}
    - {name: v, mountPath: /maybe, readOnly: true, recursiveReadOnly: IfPossible}
`)
	s.do("wait", "--for=condition=Ready", "pod/p", "--timeout=180s")
	out := s.exec("p", "for d in plain all maybe; do touch /$d/sub/x 2>/dev/null && echo $d; touch /$d/y 2>/dev/null && echo $d; done; true")
	if strings.TrimSpace(out) != "plain" {
		s.Errorf("written to: %q", out)
	}
	got := s.do("get", "pod", "p", "-o", "jsonpath={.status.containerStatuses[0].volumeMounts[*].recursiveReadOnly}")
	if !strings.HasPrefix(got, "Disabled Enabled Enabled") {
		s.Errorf("status: %q", got)
	}
}
