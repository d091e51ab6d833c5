package persistentvolume

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	volumehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"hyperkube/components/controllers/internal/controltest"
)

func volume(name, size string, edit ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
	pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	pv.Spec.HostPath = &corev1.HostPathVolumeSource{Path: "/data/" + name}
	pv.Status.Phase = corev1.VolumeAvailable
	for _, f := range edit {
		f(pv)
	}
	return pv
}

func claim(name, size string, edit ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	pvc.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pvc.Spec.StorageClassName = ptr.To("")
	pvc.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	pvc.Status.Phase = corev1.ClaimPending
	for _, f := range edit {
		f(pvc)
	}
	return pvc
}

func class(name, provisioner string, mode storagev1.VolumeBindingMode, isDefault bool) *storagev1.StorageClass {
	k := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: &mode}
	if isDefault {
		k.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
	}
	return k
}

func of(name string) func(*corev1.PersistentVolumeClaim) {
	return func(pvc *corev1.PersistentVolumeClaim) { pvc.Spec.StorageClassName = &name }
}

func on(volume string) func(*corev1.PersistentVolumeClaim) {
	return func(pvc *corev1.PersistentVolumeClaim) { pvc.Spec.VolumeName = volume }
}

func boundTo(volume string) func(*corev1.PersistentVolumeClaim) {
	return func(pvc *corev1.PersistentVolumeClaim) {
		pvc.Spec.VolumeName, pvc.Status.Phase = volume, corev1.ClaimBound
		metav1.SetMetaDataAnnotation(&pvc.ObjectMeta, volumehelpers.AnnBindCompleted, "yes")
	}
}

func claimedBy(name, uid string) func(*corev1.PersistentVolume) {
	return func(pv *corev1.PersistentVolume) {
		pv.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "ns", Name: name, UID: types.UID(uid)}
	}
}

func reclaim(policy corev1.PersistentVolumeReclaimPolicy) func(*corev1.PersistentVolume) {
	return func(pv *corev1.PersistentVolume) { pv.Spec.PersistentVolumeReclaimPolicy = policy }
}

// version makes the fake API server increment resource versions like the real one.
func version(f *controltest.Fixture) {
	n := 0
	f.Kube.PrependReactor("update", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if m, err := meta.Accessor(a.(clienttesting.UpdateAction).GetObject()); err == nil {
			n++
			m.SetResourceVersion(strconv.Itoa(n))
		}
		return false, nil, nil
	})
}

// settle syncs all objects until there are no more writes, and returns their resulting state.
func settle(t *testing.T, f *controltest.Fixture, c *Controller) []string {
	t.Helper()
	ctx := context.Background()
	for range 10 {
		pvs, err := f.Kube.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pvcs, err := f.Kube.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		f.Kube.ClearActions()
		for i := range pvcs.Items {
			_ = c.sync(ctx, claimKey+"ns/"+pvcs.Items[i].Name)
		}
		for i := range pvs.Items {
			_ = c.sync(ctx, volumeKey+pvs.Items[i].Name)
		}
		f.Observe(corev1.SchemeGroupVersion.WithKind("PersistentVolume"), corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), corev1.SchemeGroupVersion.WithKind("Pod"))
		if len(f.Writes()) > 0 {
			continue
		}
		var out []string
		for _, pvc := range pvcs.Items {
			out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s", pvc.Name, pvc.Status.Phase, pvc.Spec.VolumeName)))
		}
		for _, pv := range pvs.Items {
			ref := ""
			if pv.Spec.ClaimRef != nil {
				ref = pv.Spec.ClaimRef.Name
			}
			out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s", pv.Name, pv.Status.Phase, ref)))
		}
		slices.Sort(out)
		return out
	}
	t.Fatal("writes do not stop")
	return nil
}

func TestBinding(t *testing.T) {
	later := storagev1.VolumeBindingWaitForFirstConsumer
	for name, tc := range map[string]struct {
		objects []runtime.Object
		want    string
		event   string
	}{
		"the smallest sufficient volume": {
			objects: []runtime.Object{volume("v1", "1Gi"), volume("v5", "5Gi"), volume("v3", "3Gi"), claim("c", "2Gi")},
			want:    "c Bound v3,v1 Available,v3 Bound c,v5 Available",
		},
		"one volume, two claims": {
			objects: []runtime.Object{volume("v", "1Gi"), claim("c1", "1Gi"), claim("c2", "1Gi")},
			want:    "c1 Bound v,c2 Pending,v Bound c1",
			event:   "Normal FailedBinding no persistent volumes available for this claim and no storage class is set",
		},
		"access modes": {
			objects: []runtime.Object{volume("v", "1Gi"), claim("c", "1Gi", func(pvc *corev1.PersistentVolumeClaim) {
				pvc.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
			})},
			want: "c Pending,v Available",
		},
		"selector": {
			objects: []runtime.Object{volume("v1", "1Gi"), volume("v2", "9Gi", func(pv *corev1.PersistentVolume) { pv.Labels = map[string]string{"a": "b"} }),
				claim("c", "1Gi", func(pvc *corev1.PersistentVolumeClaim) {
					pvc.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
				})},
			want: "c Bound v2,v1 Available,v2 Bound c",
		},
		"specified by the claim": {
			objects: []runtime.Object{volume("v1", "1Gi"), volume("v2", "9Gi"), claim("c", "1Gi", on("v2"))},
			want:    "c Bound v2,v1 Available,v2 Bound c",
		},
		"specified by the claim, too small": {
			objects: []runtime.Object{volume("v", "1Mi"), claim("c", "1Gi", on("v"))},
			want:    "c Pending v,v Available",
			event:   `Warning VolumeMismatch Cannot bind to requested volume "v": requested PV is too small`,
		},
		"specified by the claim, bound to another claim": {
			objects: []runtime.Object{volume("v", "1Gi", claimedBy("other", "uid-other"), func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeBound }),
				claim("other", "1Gi", boundTo("v")), claim("c", "1Gi", on("v"))},
			want:  "c Pending v,other Bound v,v Bound other",
			event: `Warning FailedBinding volume "v" already bound to a different claim.`,
		},
		"claim specified by the volume": {
			objects: []runtime.Object{volume("v1", "1Gi"), volume("v2", "9Gi", claimedBy("c", "")), claim("c", "1Gi")},
			want:    "c Bound v2,v1 Available,v2 Bound c",
		},
		"interrupted binding": {
			objects: []runtime.Object{volume("v1", "1Gi"), volume("v2", "9Gi", claimedBy("c", "uid-c")), claim("c", "1Gi")},
			want:    "c Bound v2,v1 Available,v2 Bound c",
		},
		"no consumer yet": {
			objects: []runtime.Object{class("late", "p", later, false), volume("v", "1Gi", func(pv *corev1.PersistentVolume) { pv.Spec.StorageClassName = "late" }), claim("c", "1Gi", of("late"))},
			want:    "c Pending,v Available",
			event:   "Normal WaitForFirstConsumer waiting for first consumer to be created before binding",
		},
		"default class created later": {
			objects: []runtime.Object{class("late", "p", later, true), claim("c", "1Gi", func(pvc *corev1.PersistentVolumeClaim) { pvc.Spec.StorageClassName = nil })},
			want:    "c Pending",
			event:   "Normal WaitForFirstConsumer waiting for first consumer to be created before binding",
		},
		"no such class": {
			objects: []runtime.Object{claim("c", "1Gi", of("none"))},
			want:    "c Pending",
			event:   `Warning ProvisioningFailed storageclass.storage.k8s.io "none" not found`,
		},
		"provisioning": {
			objects: []runtime.Object{class("now", "example.com/p", storagev1.VolumeBindingImmediate, false), claim("c", "1Gi", of("now"))},
			want:    "c Pending",
			event:   "Normal ExternalProvisioning Waiting for a volume to be created either by the external provisioner 'example.com/p'",
		},
		"lost": {
			objects: []runtime.Object{claim("c", "1Gi", boundTo("v"))},
			want:    "c Lost v",
			event:   "Warning ClaimLost Bound claim has lost its PersistentVolume. Data on the volume is lost!",
		},
		"bound to another volume": {
			objects: []runtime.Object{volume("v", "1Gi", claimedBy("other", "uid-other")), claim("other", "1Gi", boundTo("v")), claim("c", "1Gi", boundTo("v"))},
			want:    "c Lost v,other Bound v,v Bound other",
			event:   "Warning ClaimMisbound Two claims are bound to the same volume, this one is bound incorrectly",
		},
		"retained": {
			objects: []runtime.Object{volume("v", "1Gi", claimedBy("c", "uid-old")), claim("c", "1Gi")},
			want:    "c Pending,v Released c",
		},
		"cannot be deleted": {
			objects: []runtime.Object{volume("v", "1Gi", claimedBy("c", "uid-old"), reclaim(corev1.PersistentVolumeReclaimDelete))},
			want:    "v Failed c",
			event:   "Warning VolumeFailedDelete host_path deleter only supports /tmp/.+ but received provided /data/v",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := controltest.New(t, tc.objects...)
			version(f)
			c, err := New(f.Env, Config{Image: "image"})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(settle(t, f, c), ","); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			if events := f.Recorded(); tc.event != "" && controltest.Count(events, tc.event) == 0 {
				t.Errorf("events %q, want %q", events, tc.event)
			}
		})
	}
}

// TestRecycle: a volume is recycled and bound again.
func TestRecycle(t *testing.T) {
	ctx := context.Background()
	f := controltest.New(t, volume("v", "1Gi", claimedBy("c", "uid-old"), reclaim(corev1.PersistentVolumeReclaimRecycle)))
	c, err := New(f.Env, Config{Image: "image"})
	if err != nil {
		t.Fatal(err)
	}
	if got := settle(t, f, c); fmt.Sprint(got) != "[v Released c]" {
		t.Fatalf("at first: %v", got)
	}
	pod := f.Pods("default")["recycler-for-v"]
	if pod == nil || pod.Spec.Volumes[0].HostPath.Path != "/data/v" || fmt.Sprint(pod.Spec.Containers[0].Args) != "[scrub /scrub]" {
		t.Fatalf("pod %+v", pod)
	}
	pod.Status.Phase = corev1.PodSucceeded
	if _, err := f.Kube.CoreV1().Pods("default").UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.Observe(corev1.SchemeGroupVersion.WithKind("Pod"))
	f.Add(claim("next", "1Gi"))
	if got := settle(t, f, c); fmt.Sprint(got) != "[next Bound v v Bound next]" {
		t.Errorf("at last: %v", got)
	}
	if e := f.Recorded(); controltest.Count(e, "Normal VolumeRecycled") != 1 {
		t.Errorf("events %v", e)
	}
}

// TestBoundAgain: the capacity of a newly bound claim is the file system's size, if the volume was
// expanded without its file system.
func TestBoundAgain(t *testing.T) {
	for before, want := range map[string]string{"": "2Gi", "1Gi": "1Gi", "much": "2Gi"} {
		f := controltest.New(t, volume("v", "2Gi", func(pv *corev1.PersistentVolume) {
			if before != "" {
				metav1.SetMetaDataAnnotation(&pv.ObjectMeta, preResizeCapacity, before)
			}
		}), claim("c", "2Gi"))
		version(f)
		c, err := New(f.Env, Config{Image: "image"})
		if err != nil {
			t.Fatal(err)
		}
		settle(t, f, c)
		pvc, err := f.Kube.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "c", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if size := pvc.Status.Capacity[corev1.ResourceStorage]; size.String() != want {
			t.Errorf("with %q: %s", before, &size)
		}
	}
}

// TestLateVolume: a claim is not lost if only the cache lacks its volume.
func TestLateVolume(t *testing.T) {
	f := controltest.New(t, claim("c", "1Gi", boundTo("v")))
	c, err := New(f.Env, Config{})
	if err != nil {
		t.Fatal(err)
	}
	v := volume("v", "1Gi", claimedBy("c", "c"))
	if err := f.Kube.Tracker().Add(v); err != nil {
		t.Fatal(err)
	}
	if err := controltest.Sync(t, c.Loop, claimKey+"ns/c"); err != nil {
		t.Fatal(err)
	}
	if w := f.Writes(); len(w) != 0 {
		t.Errorf("late: %v", w)
	}
	if err := f.Kube.CoreV1().PersistentVolumes().Delete(t.Context(), "v", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.Writes()
	if err := controltest.Sync(t, c.Loop, claimKey+"ns/c"); err != nil {
		t.Fatal(err)
	}
	if e := f.Recorded(); len(f.Writes()) != 1 || controltest.Count(e, "Warning ClaimLost") != 1 {
		t.Errorf("gone: %v", e)
	}
}
