package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"hyperkube/internal/pod/localpath"
	"hyperkube/internal/testing/testdisk"
)

// TestWriteOnFullDisk makes each step of an update of a volume's files fail. Readers see all files of
// one version, errors are equal for all attempts and name the volume, and a later attempt leaves
// nothing of earlier ones behind.
func TestWriteOnFullDisk(t *testing.T) {
	disk := testdisk.New(t)
	dir := filepath.Join(disk.Path, "volume")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := func(version, key int) File {
		return File{Data: fmt.Appendf(nil, "%d %d %s", version, key, strings.Repeat("x", 5000*key)), Mode: 0o644}
	}
	// Each version adds and removes a file and a directory.
	payload := func(version int) Payload {
		return Payload{
			"same": file(version, 0), "large": file(version, 1),
			fmt.Sprint("new-", version): file(version, 2), fmt.Sprintf("dir-%d/file", version): file(version, 3),
		}
	}
	check := func(version int) error {
		for path, want := range payload(version) {
			if got, err := os.ReadFile(filepath.Join(dir, dataLink, path)); err != nil || string(got) != string(want.Data) {
				return fmt.Errorf("version %d of %s: %.10q, %w", version, path, got, err)
			}
		}
		for _, name := range []string{"same", "large"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := writeAtomically(dir, payload(0), nil); err != nil {
		t.Fatal(err)
	}
	version := 0
	random := regexp.MustCompile(`\.\.\d{4}_`)
	disk.FailEach(func(int) error {
		err := writeAtomically(dir, payload(version+1), nil)
		if err != nil {
			return err
		}
		version++
		if err := check(version); err != nil {
			t.Error(err)
		}
		var names, want []string
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Error(err)
		}
		for _, e := range entries {
			if !random.MatchString(e.Name()) {
				names = append(names, e.Name())
			}
		}
		want = []string{dataLink, fmt.Sprint("dir-", version), "large", fmt.Sprint("new-", version), "same"}
		if !slices.Equal(names, want) || len(entries) != len(want)+1 {
			t.Errorf("the volume has %v, want %v and the directory of the files", entries, want)
		}
		return nil
	}, func(err error) {
		if !strings.Contains(err.Error(), dir) || random.MatchString(err.Error()) {
			t.Errorf("the error is %v", err)
		}
		if err := check(version); err != nil && check(version+1) != nil {
			t.Error(err, check(version+1))
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 9 {
			t.Errorf("left are %v, %v", entries, err)
		}
	})
	if version != 2 {
		t.Errorf("%d versions were written", version)
	}
}

// TestSetUpOnFullDisk sets up volumes of each type on a full disk, and mounts a subPath of them. Each
// attempt fails with an error that names the path and leaves no unused mount behind, and succeeds when
// there is space.
func TestSetUpOnFullDisk(t *testing.T) {
	disk := testdisk.New(t)
	objects := fakeObjects{"cm": {"k": strings.Repeat("x", 5000)}, "s": {"k": "p"}}
	root, local := filepath.Join(disk.Path, "kubelet"), filepath.Join(disk.Path, "local")
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "c", UID: "c"}}
	claim.Spec.VolumeName, claim.Status.Phase = "v", v1.ClaimBound
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", Annotations: map[string]string{volumehelpers.AnnDynamicallyProvisioned: localpath.Provisioner}}}
	pv.Spec.ClaimRef = &v1.ObjectReference{UID: "c"}
	pv.Spec.Local = &v1.LocalVolumeSource{Path: filepath.Join(local, "v")}
	set := &Set{Root: root, Types: []Type{
		EmptyDir{}, ConfigMapVolume{objects}, SecretVolume{objects}, DownwardAPI{}, Projected{Objects: objects, Tokens: fakeTokens{}},
		Claim{Claims: fakeClaims{claim, pv}, Types: []PersistentType{Local{Root: local}}, Node: func() *v1.Node { return &v1.Node{} }},
	}}
	name := []v1.DownwardAPIVolumeFile{{Path: "k", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}
	for _, c := range []struct {
		volume  v1.Volume
		subPath string
		mounts  int // that setting up may leave
	}{
		{v1.Volume{Name: "empty", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}, "new/directory", 0},
		{v1.Volume{Name: "memory", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}}, "new", 1},
		{v1.Volume{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "cm"}}}}, "k", 0},
		{v1.Volume{Name: "secret", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}}, "k", 1},
		{v1.Volume{Name: "downward", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: name}}}, "k", 1},
		{v1.Volume{Name: "projected", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
			{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "k"}},
		}}}}, "k", 1},
		{v1.Volume{Name: "claim", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}, "new", 0},
	} {
		t.Run(c.volume.Name, func(t *testing.T) {
			mounted := func() int {
				t.Helper()
				mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(root))
				if err != nil {
					t.Fatal(err)
				}
				return len(mounts)
			}
			pods := 0
			disk.FailEach(func(int) error {
				pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: types.UID(fmt.Sprint("pod-", pods))}}
				r, err := set.SetUp(t.Context(), pod, &c.volume)
				if err != nil {
					return err
				}
				// The content is complete or the setup fails.
				if _, err := os.Stat(filepath.Join(r.Path, c.subPath)); c.subPath == "k" && err != nil {
					t.Error(err)
				}
				if _, err := set.SubPath(set.PodDir(pod.UID), c.volume.Name, r.Path, c.subPath, "c", 0); err != nil {
					return err
				}
				if n := mounted(); n != c.mounts+1 {
					t.Errorf("%d mounts, want %d", n, c.mounts+1)
				}
				pods++
				return set.TearDown(t.Context(), pod.UID)
			}, func(err error) {
				if !strings.Contains(err.Error(), disk.Path) {
					t.Errorf("the error does not name the path: %v", err)
				}
				if n := mounted(); n > c.mounts {
					t.Errorf("%d mounts remain", n)
				}
			})
			// A pod whose volume could not be set up can terminate on the full disk.
			disk.Fill()
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "unready"}}
			if _, err := set.SetUp(t.Context(), pod, &c.volume); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("setting up: %v", err)
			}
			if err := set.TearDown(t.Context(), pod.UID); err != nil {
				t.Error(err)
			}
			disk.Free()
			if n := mounted(); n > 0 {
				t.Errorf("%d mounts remain", n)
			}
		})
	}
}
