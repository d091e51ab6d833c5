package volume

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type fakeObjects map[string]map[string]string

func (f fakeObjects) ConfigMap(_ context.Context, _, name string) (*v1.ConfigMap, error) {
	if f[name] == nil {
		return nil, apierrors.NewNotFound(v1.Resource("configmap"), name)
	}
	return &v1.ConfigMap{Data: f[name]}, nil
}

func (f fakeObjects) Secret(_ context.Context, _, name string) (*v1.Secret, error) {
	if f[name] == nil {
		return nil, apierrors.NewNotFound(v1.Resource("secret"), name)
	}
	out := &v1.Secret{Data: map[string][]byte{}}
	for k, v := range f[name] {
		out.Data[k] = []byte(v)
	}
	return out, nil
}

type fakeTokens struct{}

func (fakeTokens) Token(_ context.Context, _ *v1.Pod, _ *v1.ServiceAccountTokenProjection) (string, time.Time, error) {
	return "token", time.Unix(1e9, 0), nil
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestWriteAtomically(t *testing.T) {
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(writeAtomically(dir, Payload{"a": {Data: []byte("1"), Mode: 0o644}, "sub/b": {Data: []byte("2"), Mode: 0o400}}, nil))
	if read(t, filepath.Join(dir, "a")) != "1" || read(t, filepath.Join(dir, "sub/b")) != "2" {
		t.Error("wrong content")
	}
	first, err := os.Readlink(filepath.Join(dir, "..data"))
	must(err)
	must(writeAtomically(dir, Payload{"a": {Data: []byte("1"), Mode: 0o644}, "sub/b": {Data: []byte("2"), Mode: 0o400}}, nil))
	if again, _ := os.Readlink(filepath.Join(dir, "..data")); again != first {
		t.Error("unchanged content was written again")
	}
	must(os.Mkdir(filepath.Join(dir, "mountpoint"), 0o755))
	must(writeAtomically(dir, Payload{"a": {Data: []byte("3"), Mode: 0o644}, "c": {Mode: 0o644}}, nil))
	if _, err := os.Stat(filepath.Join(dir, "mountpoint")); err != nil {
		t.Error("a mount point of another volume was removed:", err)
	}
	if read(t, filepath.Join(dir, "a")) != "3" {
		t.Error("wrong content after the change")
	}
	if _, err := os.Lstat(filepath.Join(dir, "sub")); !os.IsNotExist(err) {
		t.Error("a stale link remains")
	}
	if _, err := os.Lstat(filepath.Join(dir, first)); !os.IsNotExist(err) {
		t.Error("the old files remain")
	}
	info, err := os.Stat(filepath.Join(dir, "a"))
	must(err)
	if info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v", info.Mode())
	}
	for _, bad := range []string{"", "/a", "../a", "a/../../b", "..a"} {
		if writeAtomically(dir, Payload{bad: {}}, nil) == nil {
			t.Errorf("path %q was accepted", bad)
		}
	}
}

// TestFailedWrites checks that failed writes leave nothing behind, however often they are retried,
// and that remains of a crash are removed.
func TestFailedWrites(t *testing.T) {
	dir := t.TempDir()
	good := Payload{"a": {Data: []byte("1"), Mode: 0o644}}
	if err := os.Mkdir(filepath.Join(dir, "..2026_01_02_03_04_05.0"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeAtomically(dir, good, nil); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := writeAtomically(dir, Payload{"a": {Mode: 0o644}, "a/b": {Mode: 0o644}}, nil); err == nil {
			t.Fatal("a file is a directory")
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 { // the files' directory, ..data, and the link "a"
		t.Errorf("%d entries: %v, %v", len(entries), entries, err)
	}
	if got := read(t, filepath.Join(dir, "a")); got != "1" {
		t.Errorf("a is %q", got)
	}
}

// TestTypes sets up every type for a pod and tears all down. It mounts, and so needs root.
func TestTypes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	objects := fakeObjects{"cm": {"k": "v", "l": "w"}, "s": {"password": "p"}}
	set := &Set{Root: t.TempDir(), Types: []Type{
		EmptyDir{}, HostPath{}, ConfigMapVolume{objects}, SecretVolume{objects}, DownwardAPI{},
		Projected{Objects: objects, Tokens: fakeTokens{}}, Image{},
	}}
	group := int64(1234)
	mode := int32(0o400)
	yes := true
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "u", Labels: map[string]string{"b": "2", "a": "1"}},
		Spec:       v1.PodSpec{SecurityContext: &v1.PodSecurityContext{FSGroup: &group}},
	}
	dir := v1.HostPathDirectoryOrCreate
	vols := []v1.Volume{
		{Name: "empty", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
		{Name: "memory", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}},
		{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: filepath.Join(t.TempDir(), "x"), Type: &dir}}},
		{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
			LocalObjectReference: v1.LocalObjectReference{Name: "cm"}, Items: []v1.KeyToPath{{Key: "k", Path: "deep/file", Mode: &mode}},
		}}},
		{Name: "secret", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", DefaultMode: &mode}}},
		{Name: "optional", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "none", Optional: &yes}}},
		{Name: "down", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{
			Items: []v1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}}},
		}}},
		{Name: "all", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
			{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}},
			{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "cm"}}},
		}}}},
	}
	defer func() { _ = set.TearDown(context.WithoutCancel(t.Context()), "u") }()
	paths := map[string]string{}
	for range 2 { // the second call changes nothing
		for i := range vols {
			r, err := set.SetUp(context.Background(), pod, &vols[i])
			if err != nil {
				t.Fatalf("%s: %v", vols[i].Name, err)
			}
			paths[vols[i].Name] = r.Path
		}
	}
	perm := func(path string) os.FileMode {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Perm()
	}
	if perm(paths["empty"]) != 0o777 || perm(paths["memory"]) != 0o777 {
		t.Errorf("modes %v %v", perm(paths["empty"]), perm(paths["memory"]))
	}
	if read(t, filepath.Join(paths["config"], "deep/file")) != "v" || perm(filepath.Join(paths["config"], "deep/file")) != 0o440 {
		t.Errorf("config map: mode %v", perm(filepath.Join(paths["config"], "deep/file")))
	}
	if read(t, filepath.Join(paths["secret"], "password")) != "p" || perm(filepath.Join(paths["secret"], "password")) != 0o440 {
		t.Error("secret")
	}
	if got := read(t, filepath.Join(paths["down"], "labels")); got != "a=\"1\"\nb=\"2\"" {
		t.Errorf("labels: %q", got)
	}
	if read(t, filepath.Join(paths["all"], "token")) != "token" || perm(filepath.Join(paths["all"], "token")) != 0o640 && perm(filepath.Join(paths["all"], "token")) != 0o600|0o440 {
		t.Errorf("token: mode %v", perm(filepath.Join(paths["all"], "token")))
	}
	if _, err := set.SetUp(context.Background(), pod, &v1.Volume{Name: "x", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "none"}}}); !apierrors.IsNotFound(err) {
		t.Errorf("a missing secret: %v", err)
	}

	// A link that leaves the volume is rejected, and nothing is created through it.
	for _, link := range []string{"/etc", "../", "/not-there", "../" + filepath.Base(paths["empty"]) + "-2"} {
		at := filepath.Join(paths["empty"], "out")
		if err := os.Symlink(link, at); err != nil {
			t.Fatal(err)
		}
		for _, sub := range []string{"out", "out/new"} {
			if p, err := set.SubPath(set.PodDir("u"), "empty", paths["empty"], sub, "c", 0); err == nil {
				t.Errorf("subPath %s with a link to %s left its volume for %s", sub, link, p)
			}
		}
		if err := os.Remove(at); err != nil {
			t.Fatal(err)
		}
	}
	// A link that stays within the volume is followed, absolute or not.
	if err := os.Mkdir(filepath.Join(paths["empty"], "real"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i, link := range []string{"real", filepath.Join(paths["empty"], "real"), "../" + filepath.Base(paths["empty"]) + "/real"} {
		name := fmt.Sprint("in", i)
		if err := os.Symlink(link, filepath.Join(paths["empty"], name)); err != nil {
			t.Fatal(err)
		}
		if _, err := set.SubPath(set.PodDir("u"), "empty", paths["empty"], name+"/made", "c", 4+i); err != nil {
			t.Errorf("a link to %s: %v", link, err)
		}
	}
	if _, err := os.Stat(filepath.Join(paths["empty"], "real", "made")); err != nil {
		t.Error("a subPath was not created at the target of the link:", err)
	}
	if _, err := set.SubPath(set.PodDir("u"), "empty", paths["empty"], "a/../../b", "c", 1); err == nil {
		t.Error("a subPath with .. was accepted")
	}
	// A directory created in a volume has the access mode of its root.
	if err := unix.Chmod(paths["empty"], 0o3777); err != nil {
		t.Fatal(err)
	}
	made, err := set.SubPath(set.PodDir("u"), "empty", paths["empty"], "new/deep", "c", 3)
	if err != nil {
		t.Fatal(err)
	}
	var info unix.Stat_t
	if err := unix.Stat(made, &info); err != nil || info.Mode&0o7777 != 0o3777 {
		t.Errorf("a created subPath has mode %o: %v", info.Mode, err)
	}
	p, err := set.SubPath(set.PodDir("u"), "config", paths["config"], "deep/file", "c", 2)
	if err != nil || read(t, p) != "v" {
		t.Errorf("subPath of a file: %v", err)
	}
	if err := set.TearDown(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(set.PodDir("u")); !os.IsNotExist(err) {
		t.Error("something remains")
	}
	if err := set.TearDown(t.Context(), "u"); err != nil {
		t.Error("again:", err)
	}
}

// TestGiveToLink checks that the group of the target directory changes if the volume is a symbolic
// link.
func TestGiveToLink(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	pod := &v1.Pod{Spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{}}}
	if err := ChangeGroup(pod, link, 1234, nil); err != nil {
		t.Fatal(err)
	}
	var info unix.Stat_t
	if err := unix.Stat(dir, &info); err != nil || info.Gid != 1234 || info.Mode&unix.S_ISGID == 0 {
		t.Errorf("group %d, mode %o: %v", info.Gid, info.Mode, err)
	}
}
