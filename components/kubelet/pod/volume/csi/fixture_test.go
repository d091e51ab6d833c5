package csi

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"hyperkube/components/kubelet/pluginwatch"
	"hyperkube/components/kubelet/pod/volume"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/testing/testcsi"
)

const driverName = "csi.example.com"

// fixture is a plugin with one driver, in a temporary directory.
type fixture struct {
	*testing.T
	root   string
	alias  layout.Alias
	node   *v1.Node
	kube   *fake.Clientset
	object *storagev1.CSIDriver
	driver *testcsi.Driver
	plugin *Plugin
	pv     *v1.PersistentVolume
	pvc    *v1.PersistentVolumeClaim
}

func isFalse() *bool { f := false; return &f }

func newFixture(t *testing.T, can ...csipb.NodeServiceCapability_RPC_Type) *fixture {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	root := t.TempDir()
	f := &fixture{T: t, root: filepath.Join(root, "kubelet")}
	if err := os.MkdirAll(filepath.Join(f.root, "pods"), 0o750); err != nil {
		t.Fatal(err)
	}
	f.node = &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n"}}
	f.object = &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{AttachRequired: isFalse()}}
	f.pvc = &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "c"}}
	f.pvc.Status.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Mi")}
	f.pv = &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	f.pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Mi")}
	f.pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	f.pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "vol-1", FSType: "ext4"}
	f.kube = fake.NewClientset(f.node, f.object, f.pvc)
	f.driver = &testcsi.Driver{Name: driverName, NodeID: "node-1", Dir: filepath.Join(root, "content"), Capabilities: can, Max: 7, Topology: map[string]string{"topology.example.com/zone": "a"}}
	_, stop, err := f.driver.Serve(filepath.Join(root, "d.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	f.start()
	t.Cleanup(func() {
		all, err := mountinfo.GetMounts(mountinfo.PrefixFilter(root))
		if err != nil || len(all) > 0 {
			t.Errorf("mounts are left: %v %v", all, err)
		}
	})
	return f
}

// start simulates a restart of the kubelet: it creates a new plugin with the driver.
func (f *fixture) start() {
	f.Helper()
	p, err := New(Config{Root: f.root, NodeName: "n", Kube: f.kube, Node: func() *v1.Node { return f.node }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	f.plugin = p
	f.Cleanup(func() { closeDrivers(p) })
	err = f.plugin.Register(f.Context(), pluginwatch.Plugin{Name: driverName, Endpoint: filepath.Join(filepath.Dir(f.root), "d.sock"), Socket: "s", Alias: f.alias, Versions: []string{"1.0.0"}})
	if err != nil {
		f.Fatal(err)
	}
}

// closeDrivers disconnects the drivers of a plugin, as Run does when it returns.
func closeDrivers(p *Plugin) {
	p.mu.Lock()
	drivers := slices.Collect(maps.Values(p.drivers))
	p.mu.Unlock()
	for _, d := range drivers {
		d.close()
	}
}

func (f *fixture) set() *volume.Set {
	return &volume.Set{Root: f.root, Types: []volume.Type{f.plugin, volume.Claim{
		Claims: claims{f}, Node: func() *v1.Node { return f.node }, Types: []volume.PersistentType{f.plugin},
	}}}
}

type claims struct{ f *fixture }

func (c claims) Claim(context.Context, string, string) (*v1.PersistentVolumeClaim, error) {
	pvc := c.f.pvc.DeepCopy()
	pvc.Spec.VolumeName, pvc.Status.Phase = c.f.pv.Name, v1.ClaimBound
	return pvc, nil
}

func (c claims) Volume(context.Context, string) (*v1.PersistentVolume, error) {
	pv := c.f.pv.DeepCopy()
	pv.Spec.ClaimRef = &v1.ObjectReference{UID: c.f.pvc.UID}
	return pv, nil
}

func pod(uid string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p-" + uid, UID: types.UID(uid)}, Spec: v1.PodSpec{ServiceAccountName: "sa"}}
}

func claimed() *v1.Volume {
	return &v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}
}

func (f *fixture) up(uid string) volume.Result {
	f.Helper()
	r, err := f.set().SetUp(f.Context(), pod(uid), claimed())
	if err != nil {
		f.Fatal(err)
	}
	return r
}

func (f *fixture) down(uid types.UID) {
	f.Helper()
	if err := f.set().TearDown(f.Context(), uid); err != nil {
		f.Fatal(err)
	}
}

// methods returns the names of the calls about a volume that the driver got since the last call of methods.
func (f *fixture) methods() string {
	var out []string
	for _, c := range f.driver.Calls("") {
		if c.Volume != "" {
			out = append(out, strings.TrimSuffix(strings.TrimPrefix(c.Method, "Node"), "Volume"))
		}
	}
	f.driver.ClearCalls()
	return strings.Join(out, " ")
}

const stages = csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME
