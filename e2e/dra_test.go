package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// deviceDriver is a DRA driver whose devices set an environment variable in containers. It uses the
// same library as real drivers.
type deviceDriver struct {
	name string
	cdi  string // the CDI file

	mu       sync.Mutex
	prepared map[types.UID]bool
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *deviceDriver) PrepareResourceClaims(_ context.Context, claims []*resourcev1.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		var devices []kubeletplugin.Device
		for _, r := range c.Status.Allocation.Devices.Results {
			devices = append(devices, kubeletplugin.Device{
				Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device, CDIDeviceIDs: []string{d.name + "/device=" + r.Device},
			})
		}
		d.prepared[c.UID] = true
		out[c.UID] = kubeletplugin.PrepareResult{Devices: devices}
	}
	return out, nil
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *deviceDriver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[types.UID]error{}
	for _, c := range claims {
		delete(d.prepared, c.UID)
		out[c.UID] = nil
	}
	return out, nil
}

// HandleError implements kubeletplugin.DRAPlugin.
func (d *deviceDriver) HandleError(_ context.Context, err error, msg string) {
	if !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, d.name, msg, err)
	}
}

// WatchHealthStatus implements kubeletplugin.DRAPlugin.
func (d *deviceDriver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

func (d *deviceDriver) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.prepared)
}

// TestResourceClaims: devices of a driver are allocated to pods, shared, and deallocated.
func TestResourceClaims(t *testing.T) {
	s := newSpace(t)
	s.needBusybox()
	node := s.do("get", "node", "-o", "jsonpath={.items[0].metadata.name}")
	d := &deviceDriver{name: s.name + ".example.com", prepared: map[types.UID]bool{}}
	// The runtime reads CDI files from this directory.
	if err := os.MkdirAll("/var/run/cdi", 0o755); err != nil {
		t.Fatal(err)
	}
	d.cdi = filepath.Join("/var/run/cdi", d.name+".json")
	t.Cleanup(func() {
		if err := os.Remove(d.cdi); err != nil {
			t.Error(err)
		}
		_ = os.Remove("/var/run/cdi") // fails if it is not empty
	})
	spec := `{"cdiVersion":"0.6.0","kind":"` + d.name + `/device","devices":[
		{"name":"one","containerEdits":{"env":["DEVICE_ONE=1"]}},{"name":"two","containerEdits":{"env":["DEVICE_TWO=2"]}}]}`
	if err := os.WriteFile(d.cdi, []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join("/var/lib/kubelet/plugins", d.name)
	if err := os.MkdirAll(data, 0o750); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(data); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	helper, err := kubeletplugin.Start(ctx, d, kubeletplugin.DriverName(d.name), kubeletplugin.KubeClient(s.kube), kubeletplugin.NodeName(node))
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			helper.Stop()
		}
	}
	defer stop()
	model := "fast"
	if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: {Slices: []resourceslice.Slice{{Devices: []resourcev1.Device{
		{Name: "one", Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {StringValue: &model}}}, {Name: "two"},
	}}}}}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.do("delete", "resourceslices", "--field-selector=spec.driver="+d.name)
		s.do("delete", "deviceclass", d.name)
	})
	pod := func(name, claim string) string {
		return fmt.Sprintf(`
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  terminationGracePeriodSeconds: 0
  resourceClaims: [{name: d, %[2]s}]
  containers:
  - {name: c, image: %[3]s, command: [sleep, "1000"], resources: {claims: [{name: d}]}}
  - {name: without, image: %[3]s, command: [sleep, "1000"]}
`, name, claim, busybox)
	}
	s.apply(`
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: ` + d.name + `}
spec: {selectors: [{cel: {expression: 'device.driver == "` + d.name + `"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: fast}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: ` + d.name + `, selectors: [{cel: {expression: 'device.attributes["` + d.name + `"].?model.orValue("") == "fast"'}}]}}]}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: shared}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: ` + d.name + `}}]}}
` + pod("fast", "resourceClaimTemplateName: fast"))
	s.do("wait", "--for=condition=Ready", "pod/fast", "--timeout=180s")
	s.apply(pod("a", "resourceClaimName: shared") + pod("b", "resourceClaimName: shared") + pod("late", "resourceClaimTemplateName: fast"))
	s.do("wait", "--for=condition=Ready", "pod/a", "pod/b", "--timeout=180s")
	s.contains(s.exec("fast", "env"), "DEVICE_ONE=1")
	for _, name := range []string{"a", "b"} {
		s.contains(s.exec(name, "env"), "DEVICE_TWO=2")
	}
	if env := s.do("exec", "a", "-c", "without", "--", "env"); strings.Contains(env, "DEVICE") {
		t.Errorf("a container without the claim has the device:\n%s", env)
	}
	if n := d.count(); n != 2 {
		t.Errorf("%d claims are prepared", n)
	}
	shared := s.do("get", "resourceclaim", "shared", "-o", "jsonpath={.status.allocation.devices.results[*].device} {.status.reservedFor[*].name}")
	if shared != "two a b" && shared != "two b a" {
		t.Errorf("shared: %s", shared)
	}
	// There is only one fast device.
	s.eventually(20*time.Second, func() error {
		if got := s.do("get", "pod", "late", "-o", "jsonpath={.status.conditions[*].message}"); !strings.Contains(got, "cannot allocate all claims") {
			return fmt.Errorf("late: %q", got)
		}
		return nil
	})
	s.do("delete", "pod", "fast", "--wait")
	s.do("wait", "--for=condition=Ready", "pod/late", "--timeout=180s")
	s.contains(s.exec("late", "env"), "DEVICE_ONE=1")

	// A pod that requests a device as an extended resource gets it when one is free.
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: extended}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: ` + busybox + `, command: [sleep, "1000"], resources: {limits: {deviceclass.resource.kubernetes.io/` + d.name + `: 1}}}
  - {name: without, image: ` + busybox + `, command: [sleep, "1000"]}
`)
	s.do("delete", "pod", "a", "b", "late", "--wait")
	s.do("wait", "--for=condition=Ready", "pod/extended", "--timeout=180s")
	s.contains(s.exec("extended", "env"), "DEVICE_")
	if env := s.do("exec", "extended", "-c", "without", "--", "env"); strings.Contains(env, "DEVICE_") {
		t.Errorf("a container without a request has a device:\n%s", env)
	}
	s.do("delete", "pod", "extended", "--wait")
	s.eventually(10*time.Second, func() error {
		if n := d.count(); n != 0 {
			return fmt.Errorf("%d claims are prepared", n)
		}
		return nil
	})
	s.eventually(10*time.Second, func() error {
		claims, err := s.kube.ResourceV1().ResourceClaims(s.name).List(s.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, c := range claims.Items {
			if c.Name != "shared" || c.Status.Allocation != nil {
				return fmt.Errorf("claim %s remains: %+v", c.Name, c.Status)
			}
		}
		return nil
	})
	// Without the driver, the pod waits.
	stop()
	s.apply(pod("orphan", "resourceClaimName: shared"))
	s.eventually(20*time.Second, func() error {
		events, err := s.kube.CoreV1().Events(s.name).List(s.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=orphan,reason=FailedPrepareDynamicResources"})
		if err == nil && len(events.Items) == 0 {
			err = errors.New("no event about the missing driver")
		}
		return err
	})
	p, err := s.kube.CoreV1().Pods(s.name).Get(s.ctx, "orphan", metav1.GetOptions{})
	if err != nil || p.Status.Phase != corev1.PodPending {
		t.Errorf("%v, the pod is %s", err, p.Status.Phase)
	}
	s.do("delete", "pod", "orphan", "--wait=false")
}
