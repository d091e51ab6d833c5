package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"hyperkube/internal/pod/localpath"
)

type fakeClaims struct {
	pvc *v1.PersistentVolumeClaim
	pv  *v1.PersistentVolume
}

func (f fakeClaims) Claim(context.Context, string, string) (*v1.PersistentVolumeClaim, error) {
	return f.pvc, nil
}
func (f fakeClaims) Volume(context.Context, string) (*v1.PersistentVolume, error) { return f.pv, nil }

func TestClaim(t *testing.T) {
	now := metav1.Now()
	for name, tc := range map[string]struct {
		edit func(pvc *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, localDir string)
		want string // substring of the error
	}{
		"bound":     {},
		"not bound": {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume, _ string) { c.Status.Phase = v1.ClaimPending }, "PVC is not bound"},
		"another's": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, _ string) { pv.Spec.ClaimRef.UID = "other" }, "not bound to the claim"},
		"deleted":   {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume, _ string) { c.DeletionTimestamp = &now }, "PVC c is being deleted"},
		"deleted, but protected": {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume, _ string) {
			c.DeletionTimestamp, c.Finalizers = &now, []string{"kubernetes.io/pvc-protection"}
		}, ""},
		"node affinity of another node": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, _ string) {
			pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] = "other"
		}, "node affinity"},
		"path outside the provisioner's directory": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, localDir string) {
			pv.Spec.Local.Path = filepath.Join(filepath.Dir(localDir), "elsewhere", "v")
		}, "does not exist"},
		"claim of another volume": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, localDir string) {
			pv.Spec.Local.Path = filepath.Join(localDir, "w")
		}, "does not exist"},
		"block": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, _ string) {
			block := v1.PersistentVolumeBlock
			pv.Spec.VolumeMode = &block
		}, "MapVolume.SetUpDevice failed for volume \"v\""},
		"unknown type": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, _ string) {
			pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{}}
		}, ErrUnsupported.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			localDir := filepath.Join(root, "local")
			pvc := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "c"}}
			pvc.Spec.VolumeName, pvc.Status.Phase = "v", v1.ClaimBound
			pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", Annotations: map[string]string{volumehelpers.AnnDynamicallyProvisioned: localpath.Provisioner}}}
			pv.Spec.ClaimRef = &v1.ObjectReference{UID: "c"}
			pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
			pv.Spec.Local = &v1.LocalVolumeSource{Path: filepath.Join(localDir, "v")}
			pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: "n", Operator: v1.NodeSelectorOpIn, Values: []string{"here"}}},
			}}}}
			if tc.edit != nil {
				tc.edit(pvc, pv, localDir)
			}
			set := &Set{Root: root, Types: []Type{Claim{
				Claims: fakeClaims{pvc, pv}, Types: []PersistentType{HostPath{}, Local{Root: localDir}},
				Node: func() *v1.Node {
					return &v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"n": "here"}}}
				},
			}}}
			group := int64(os.Getgid())
			pod := func(uid string) *v1.Pod {
				return &v1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: types.UID(uid)},
					Spec:       v1.PodSpec{SecurityContext: &v1.PodSecurityContext{FSGroup: &group}},
				}
			}
			vol := &v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c", ReadOnly: true}}}
			r, err := set.SetUp(t.Context(), pod("p1"), vol)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%v, want %q", err, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if r.Path != pv.Spec.Local.Path || !r.ReadOnly || !r.Persistent {
				t.Errorf("result %+v", r)
			}
			if err := os.WriteFile(filepath.Join(r.Path, "file"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			// The same pod may set it up again although the claim is being deleted; another pod may
			// not before the first has terminated.
			pvc.DeletionTimestamp = &now
			if _, err := set.SetUp(t.Context(), pod("p1"), vol); err != nil {
				t.Error(err)
			}
			pvc.DeletionTimestamp = nil
			if _, err := set.SetUp(t.Context(), pod("p2"), vol); err == nil || !strings.Contains(err.Error(), "ReadWriteOncePod") {
				t.Errorf("a second pod: %v", err)
			}
			if err := set.TearDown(t.Context(), "p1"); err != nil {
				t.Fatal(err)
			}
			if _, err := set.SetUp(t.Context(), pod("p2"), vol); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(r.Path, "file")); errors.Is(err, os.ErrNotExist) {
				t.Error("the data was deleted with the pod")
			}
		})
	}
}

// TestLocalVolumeWithTwoGroups checks that the group of a volume in use does not change to that of a second
// pod, and that an event reports this.
func TestLocalVolumeWithTwoGroups(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	root := t.TempDir()
	path := filepath.Join(root, "v")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	pvc := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "c"}}
	pvc.Spec.VolumeName, pvc.Status.Phase = "v", v1.ClaimBound
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
	pv.Spec.ClaimRef = &v1.ObjectReference{UID: "c"}
	pv.Spec.Local = &v1.LocalVolumeSource{Path: path}
	var events []string
	set := &Set{Root: root, Types: []Type{Claim{
		Claims: fakeClaims{pvc, pv}, Node: func() *v1.Node { return &v1.Node{} },
		Types: []PersistentType{Local{Warn: func(_ *v1.Pod, reason, message string) { events = append(events, reason+" "+message) }}},
	}}}
	use := func(uid types.UID, group int64) uint32 {
		t.Helper()
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: string(uid), UID: uid}, Spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{FSGroup: &group}}}
		vol := &v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}
		if _, err := set.SetUp(t.Context(), pod, vol); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Gid
	}
	if gid := use("p1", 1234); gid != 1234 || len(events) != 0 {
		t.Errorf("group %d, events %q", gid, events)
	}
	if gid := use("p2", 1234); gid != 1234 || len(events) != 0 {
		t.Errorf("group %d, events %q", gid, events)
	}
	want := "AlreadyMountedVolume The requested fsGroup is 4321, but the volume v has GID 1234. The volume may not be shareable."
	if gid := use("p3", 4321); gid != 1234 || len(events) != 1 || events[0] != want {
		t.Errorf("group %d, events %q", gid, events)
	}
	for _, uid := range []types.UID{"p1", "p2", "p3"} {
		if err := set.TearDown(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
	if gid := use("p4", 4321); gid != 4321 {
		t.Errorf("group %d after all other pods terminated", gid)
	}
}
