package csi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
)

func TestStageAndPublish(t *testing.T) {
	f := newFixture(t, stages)
	a := f.up("a")
	if err := os.WriteFile(filepath.Join(a.Path, "file"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	f.up("a")
	b := f.up("b")
	if got := f.methods(); got != "Stage Publish Publish" {
		t.Errorf("setup: %s", got)
	}
	if data, err := os.ReadFile(filepath.Join(b.Path, "file")); string(data) != "x" {
		t.Errorf("the other pod: %q %v", data, err)
	}
	f.down("a")
	if got := f.methods(); got != "Unpublish" {
		t.Errorf("first pod torn down: %s", got)
	}
	// After a restart of the kubelet the volume is published again because the driver may not have
	// finished.
	f.start()
	f.up("b")
	f.down("b")
	if got := f.methods(); got != "Stage Publish Unpublish Unstage" {
		t.Errorf("after a restart: %s", got)
	}
	if data, err := os.ReadFile(filepath.Join(f.driver.Dir, "vol-1", "file")); string(data) != "x" {
		t.Errorf("the volume's content: %q %v", data, err)
	}
	if left, _ := filepath.Glob(filepath.Join(f.root, "plugins/kubernetes.io/csi/*/*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	node, err := f.kube.StorageV1().CSINodes().Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if d := node.Spec.Drivers; len(d) != 1 || d[0].NodeID != "node-1" || *d[0].Allocatable.Count != 7 || !slices.Equal(d[0].TopologyKeys, []string{"topology.example.com/zone"}) {
		t.Errorf("CSINode: %+v", d)
	}
	n, err := f.kube.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil || n.Labels["topology.example.com/zone"] != "a" || n.Annotations[nodeIDAnnotation] != `{"csi.example.com":"node-1"}` {
		t.Errorf("node: %v %v %v", n.Labels, n.Annotations, err)
	}
}

// TestKilledHalfWay checks that the next kubelet cleans up completely, whatever step the killed one
// had reached.
func TestKilledHalfWay(t *testing.T) {
	for _, tc := range []struct {
		at   string
		code codes.Code
	}{
		{"NodeStageVolume", codes.Unavailable},
		{"NodePublishVolume", codes.Unavailable},
		{"NodeUnpublishVolume", codes.Unavailable},
		{"NodeUnstageVolume", codes.Unavailable},
		{"NodeStageVolume", codes.InvalidArgument},
		{"NodePublishVolume", codes.InvalidArgument},
	} {
		t.Run(tc.at+tc.code.String(), func(t *testing.T) {
			at := tc.at
			f := newFixture(t, stages)
			broken := true
			f.driver.Fail = func(method, _ string) error {
				if broken && method == at {
					return status.Error(tc.code, "the driver says no")
				}
				return nil
			}
			set := f.set()
			_, up := set.SetUp(t.Context(), pod("a"), claimed())
			down := error(nil)
			if up == nil {
				down = set.TearDown(t.Context(), "a")
			}
			if up == nil && down == nil && at != "NodeUnstageVolume" {
				t.Fatal("nothing failed")
			}
			broken = false
			// A partially written file also remains.
			for _, dir := range []string{filepath.Join(f.root, "pods", "a", "volumes", pluginName, "pv"), f.plugin.places.staged(key{driverName, "vol-1"})} {
				if _, err := os.Stat(dir); err == nil {
					if err := os.WriteFile(filepath.Join(dir, "."+dataFile+"123"), nil, 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			f.start()
			f.down("a")
			if err := f.plugin.unstageUnused(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(filepath.Join(f.root, "pods", "a")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the pod's directory: %v", err)
			}
			if left, _ := filepath.Glob(filepath.Join(f.root, "plugins/kubernetes.io/csi/*/*")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestUnstageFails checks that the pod is deleted nevertheless, and that the volume is staged again
// for the next pod.
func TestUnstageFails(t *testing.T) {
	f := newFixture(t, stages)
	broken := true
	f.driver.Fail = func(method, _ string) error {
		if broken && method == "NodeUnstageVolume" {
			return status.Error(codes.InvalidArgument, "the driver says no")
		}
		return nil
	}
	f.up("a")
	f.down("a")
	f.up("b")
	if got := f.methods(); got != "Stage Publish Unpublish Unstage Stage Publish" {
		t.Errorf("two pods: %s", got)
	}
	f.down("b")
	if err := f.plugin.unstageUnused(t.Context()); err == nil {
		t.Error("the failure is not reported")
	}
	broken = false
	if err := f.plugin.unstageUnused(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(f.root, "plugins/kubernetes.io/csi/*/*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestTearDownUnpublishedWithoutDriver(t *testing.T) {
	f := newFixture(t)
	f.pv.Spec.CSI.Driver = "other.example.com"
	set := f.set()
	f.kube.StorageV1().CSIDrivers().Create(t.Context(), &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "other.example.com"}, Spec: f.object.Spec}, metav1.CreateOptions{})
	_, err := set.SetUp(t.Context(), pod("a"), claimed())
	if err == nil || err.Error() != `MountVolume.MountDevice failed for volume "pv" : kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: driver name other.example.com not found in the list of registered CSI drivers` {
		t.Errorf("%v", err)
	}
	f.down("a")
}

func TestAttach(t *testing.T) {
	f := newFixture(t)
	f.object.Spec.AttachRequired = nil
	if _, err := f.kube.StorageV1().CSIDrivers().Update(t.Context(), f.object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: attachmentName(key{driverName, "vol-1"}, "n")}}
	a.Status.Attached, a.Status.AttachmentMetadata = true, map[string]string{"device": "7"}
	if _, err := f.kube.StorageV1().VolumeAttachments().Create(t.Context(), a, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	inUse := make(chan struct{}, 8)
	f.plugin.users.Changed = func() { inUse <- struct{}{} }
	node := make(chan *v1.Node, 1)
	node <- f.node
	f.plugin.cfg.Node = func() *v1.Node { n := <-node; node <- n; return n }
	done := make(chan error, 1)
	go func() {
		_, err := f.set().SetUp(t.Context(), pod("a"), claimed())
		done <- err
	}()
	<-inUse
	names := f.plugin.VolumesInUse()
	if len(names) != 1 || names[0] != "kubernetes.io/csi/csi.example.com^vol-1" {
		t.Fatalf("in use: %v", names)
	}
	select {
	case err := <-done:
		t.Fatalf("not attached: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	fresh := (<-node).DeepCopy()
	fresh.Status.VolumesInUse, fresh.Status.VolumesAttached = names, []v1.AttachedVolume{{Name: names[0]}}
	node <- fresh
	f.plugin.Observe()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for _, c := range f.driver.Calls("vol-1") {
		if r, ok := c.Request.(*csipb.NodePublishVolumeRequest); ok && r.PublishContext["device"] != "7" {
			t.Errorf("publish context %v", r.PublishContext)
		}
	}
	// After a restart the kubelet knows which volumes are in use.
	f.start()
	if n := f.plugin.VolumesInUse(); len(n) != 1 {
		t.Errorf("after a restart: %v", n)
	}
	f.down("a")
	if n := f.plugin.VolumesInUse(); len(n) != 0 {
		t.Errorf("after teardown: %v", n)
	}
}

// TestAttachNotRequiredDuringWait checks that a pod that waits for a volume to be attached continues as
// soon as the CSIDriver no longer requires attachment.
func TestAttachNotRequiredDuringWait(t *testing.T) {
	f := newFixture(t)
	set := func(attach bool) {
		f.object.Spec.AttachRequired = &attach
		if _, err := f.kube.StorageV1().CSIDrivers().Update(t.Context(), f.object, metav1.UpdateOptions{}); err != nil {
			t.Error(err)
		}
	}
	set(true)
	watched := make(chan struct{}, 1)
	f.kube.PrependWatchReactor("csidrivers", func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := f.kube.Tracker().Watch(action.GetResource(), action.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		// Like in the API, a watch begins with the existing object.
		obj, err := f.kube.Tracker().Get(action.GetResource(), action.GetNamespace(), driverName)
		if fresh, ok := w.(*watch.RaceFreeFakeWatcher); ok && err == nil {
			fresh.Add(obj)
		}
		select {
		case watched <- struct{}{}:
		default:
		}
		return true, w, err
	})
	go func() {
		<-watched
		set(false)
	}()
	f.up("a")
	if n := f.plugin.VolumesInUse(); len(n) != 0 {
		t.Errorf("in use: %v", n)
	}
	f.down("a")
}

// TestAttachNotRequiredAfterWait checks that a volume is no longer in use after a wait for its attachment ended
// because its CSIDriver no longer requires attachment.
func TestAttachNotRequiredAfterWait(t *testing.T) {
	f := newFixture(t)
	set := func(attach bool) {
		f.object.Spec.AttachRequired = &attach
		if _, err := f.kube.StorageV1().CSIDrivers().Update(t.Context(), f.object, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	set(true)
	ctx, cancel := context.WithCancel(t.Context())
	f.plugin.users.Changed = cancel
	if _, err := f.set().SetUp(ctx, pod("a"), claimed()); err == nil || len(f.plugin.VolumesInUse()) != 1 {
		t.Fatalf("not attached: %v, in use %v", err, f.plugin.VolumesInUse())
	}
	set(false)
	f.up("a")
	if n := f.plugin.VolumesInUse(); len(n) != 0 {
		t.Errorf("in use: %v", n)
	}
	f.down("a")
}

func TestInline(t *testing.T) {
	f := newFixture(t, stages)
	yes := true
	f.object.Spec.PodInfoOnMount, f.object.Spec.RequiresRepublish = &yes, &yes
	seconds := int64(600)
	f.object.Spec.TokenRequests = []storagev1.TokenRequest{{Audience: "aud", ExpirationSeconds: &seconds}}
	f.plugin.cfg.Tokens = tokens{}
	f.object.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	update := func() {
		if _, err := f.kube.StorageV1().CSIDrivers().Update(t.Context(), f.object, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	update()
	v := &v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: driverName, VolumeAttributes: map[string]string{"size": "1"}}}}
	if _, err := f.set().SetUp(t.Context(), pod("a"), v); err == nil || !strings.Contains(err.Error(), `volume mode "Ephemeral" not supported by driver csi.example.com`) {
		t.Errorf("driver for persistent volumes only: %v", err)
	}
	f.object.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
	update()
	r, err := f.set().SetUp(t.Context(), pod("a"), v)
	if err != nil {
		t.Fatal(err)
	}
	if r.Refresh.IsZero() {
		t.Error("a refresh is requested")
	}
	got, err := os.ReadFile(filepath.Join(r.Path, "context"))
	if err != nil {
		t.Fatal(err)
	}
	want := `csi.storage.k8s.io/ephemeral=true
csi.storage.k8s.io/pod.name=p-a
csi.storage.k8s.io/pod.namespace=ns
csi.storage.k8s.io/pod.uid=a
csi.storage.k8s.io/serviceAccount.name=sa
csi.storage.k8s.io/serviceAccount.tokens={"aud":{"token":"t","expirationTimestamp":"2030-01-01T00:00:00Z"}}
size=1
`
	if string(got) != want {
		t.Errorf("context:\n%s", got)
	}
	if _, err := f.set().SetUp(t.Context(), pod("a"), v); err != nil {
		t.Fatal(err)
	}
	f.down("a")
	if got := f.methods(); got != "Publish Publish Unpublish" {
		t.Errorf("calls: %s", got)
	}
}

type tokens struct{}

func (tokens) Bound(context.Context, *v1.Pod, string, *int64) (string, time.Time, time.Time, error) {
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	return "t", at, at, nil
}

func TestGroup(t *testing.T) {
	none, file := storagev1.NoneFSGroupPolicy, storagev1.FileFSGroupPolicy
	group := int64(2345)
	for name, tc := range map[string]struct {
		policy *storagev1.FSGroupPolicy
		fsType string
		access v1.PersistentVolumeAccessMode
		can    []csipb.NodeServiceCapability_RPC_Type
		own    bool // the kubelet changes the group
		group  string
	}{
		"default policy":          {fsType: "ext4", access: v1.ReadWriteOnce, own: true},
		"no file system":          {access: v1.ReadWriteOnce},
		"many nodes":              {fsType: "ext4", access: v1.ReadWriteMany},
		"never":                   {policy: &none, fsType: "ext4", access: v1.ReadWriteOnce},
		"always":                  {policy: &file, access: v1.ReadWriteMany, own: true},
		"group set by the driver": {fsType: "ext4", access: v1.ReadWriteOnce, can: []csipb.NodeServiceCapability_RPC_Type{csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP}, group: "2345"},
		"no group":                {policy: &none, access: v1.ReadWriteOnce, can: []csipb.NodeServiceCapability_RPC_Type{csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, tc.can...)
			f.object.Spec.FSGroupPolicy = tc.policy
			if _, err := f.kube.StorageV1().CSIDrivers().Update(t.Context(), f.object, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			f.pv.Spec.CSI.FSType, f.pv.Spec.AccessModes = tc.fsType, []v1.PersistentVolumeAccessMode{tc.access}
			p := pod("a")
			p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
			r, err := f.set().SetUp(t.Context(), p, claimed())
			if err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(r.Path)
			if err != nil {
				t.Fatal(err)
			}
			if got := info.Mode()&os.ModeSetgid != 0; got != tc.own {
				t.Errorf("group set: %v", got)
			}
			for _, c := range f.driver.Calls("vol-1") {
				if r, ok := c.Request.(*csipb.NodePublishVolumeRequest); ok && r.GetVolumeCapability().GetMount().GetVolumeMountGroup() != tc.group {
					t.Errorf("driver got group %q", r.GetVolumeCapability().GetMount().GetVolumeMountGroup())
				}
			}
			f.down("a")
		})
	}
}

func TestBlock(t *testing.T) {
	f := newFixture(t, stages)
	block := v1.PersistentVolumeBlock
	f.pv.Spec.VolumeMode = &block
	r := f.up("a")
	info, err := os.Stat(r.Device)
	if err != nil || info.Mode()&os.ModeDevice == 0 {
		t.Fatalf("the device %q: %v %v", r.Device, info, err)
	}
	f.start()
	f.down("a")
	if got := f.methods(); got != "Stage Publish Unpublish Unstage" {
		t.Errorf("calls: %s", got)
	}
}

func TestMeasure(t *testing.T) {
	f := newFixture(t, csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS)
	r := f.up("a")
	if r.Measure == nil {
		t.Fatal("no usage")
	}
	u, err := r.Measure(t.Context())
	if err != nil || *u.Capacity != 1000 || *u.Used != 300 || *u.InodesFree != 70 {
		t.Errorf("%+v %v", u, err)
	}
	f.down("a")
	if _, err := r.Measure(t.Context()); err == nil {
		t.Error("stats of a removed volume")
	}
}

func TestAccessMode(t *testing.T) {
	plain := &driver{}
	fine := &driver{capabilities: map[csipb.NodeServiceCapability_RPC_Type]bool{csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER: true}}
	for _, tc := range []struct {
		d    *driver
		mode v1.PersistentVolumeAccessMode
		want csipb.VolumeCapability_AccessMode_Mode
	}{
		{plain, v1.ReadWriteOnce, csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		{plain, v1.ReadWriteOncePod, csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		{plain, v1.ReadWriteMany, csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		{plain, v1.ReadOnlyMany, csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY},
		{fine, v1.ReadWriteOnce, csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		{fine, v1.ReadWriteOncePod, csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER},
	} {
		if got := accessMode(tc.d, []v1.PersistentVolumeAccessMode{tc.mode}); got != tc.want {
			t.Errorf("%s: %v", tc.mode, got)
		}
	}
}

func FuzzDecodeData(f *testing.F) {
	f.Add([]byte(`{"volumeHandle":"v","driverName":"d"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if d, err := decodeData(raw); err == nil && (d.Driver == "" || d.Handle == "") {
			t.Errorf("%+v", d)
		}
	})
}
