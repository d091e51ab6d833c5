package volume

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

func attributes(t *testing.T, path string) (group int, mode uint32) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return int(st.Gid), st.Mode & 0o7777
}

func TestSetGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	root := t.TempDir()
	for name, mode := range map[string]uint32{"sub/file": 0o600, "sub/tool": 0o4755} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := unix.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := setGroup(root, 4321, false); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]uint32{"sub": 0o2770, "sub/file": 0o660, "sub/tool": 0o4775} {
		if group, mode := attributes(t, filepath.Join(root, name)); group != 4321 || mode != want {
			t.Errorf("%s: group %d, mode %o, want %o", name, group, mode, want)
		}
	}
}

// TestGroupChangePolicy checks that a volume whose root already has the group is left unchanged
// only with the policy OnRootMismatch.
func TestGroupChangePolicy(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	mismatch, always := v1.FSGroupChangeOnRootMismatch, v1.FSGroupChangeAlways
	for name, c := range map[string]struct {
		policy *v1.PodFSGroupChangePolicy
		group  int
		mode   uint32
		given  bool
	}{
		"no policy":                      {nil, 4321, 0o2770, true},
		"always":                         {&always, 4321, 0o2770, true},
		"OnRootMismatch, match":          {&mismatch, 4321, 0o2770, false},
		"OnRootMismatch, another group":  {&mismatch, 1234, 0o2770, true},
		"OnRootMismatch, no setgid bit":  {&mismatch, 4321, 0o770, true},
		"OnRootMismatch, no group write": {&mismatch, 4321, 0o2750, true},
	} {
		root := t.TempDir()
		file := filepath.Join(root, "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(root, 0, c.group); err != nil {
			t.Fatal(err)
		}
		if err := unix.Chmod(root, c.mode); err != nil {
			t.Fatal(err)
		}
		pod := &v1.Pod{Spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{FSGroupChangePolicy: c.policy}}}
		if err := ChangeGroup(pod, root, 4321, nil); err != nil {
			t.Fatal(err)
		}
		if group, _ := attributes(t, file); (group == 4321) != c.given {
			t.Errorf("%s: the file has group %d", name, group)
		}
		if group, mode := attributes(t, root); group != 4321 || mode&0o2770 != 0o2770 {
			t.Errorf("%s: the root has group %d, mode %o", name, group, mode)
		}
	}
}

// TestSetGroupOfReplacedDirectories checks that replacing directories by symbolic links during the change
// of the group does not affect files outside the volume.
func TestSetGroupOfReplacedDirectories(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	root, outside := t.TempDir(), t.TempDir()
	victim := filepath.Join(outside, "file")
	dir, link := filepath.Join(root, "dir"), filepath.Join(root, "link")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-over:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	}()
	for range 3000 {
		if err := setGroup(root, 4321, false); err != nil {
			t.Error(err)
			break
		}
		if group, mode := attributes(t, victim); group != 0 || mode != 0o600 {
			t.Errorf("a file outside of the volume has group %d and mode %o", group, mode)
			break
		}
	}
	close(over)
	<-ended
}

// TestGroupSetAfterRestart checks that the group is set for a volume that was created by a kubelet that was
// killed before setting it.
func TestGroupSetAfterRestart(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	group := int64(4321)
	pod := &v1.Pod{Spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{FSGroup: &group}}}
	dir := filepath.Join(t.TempDir(), "v")
	if _, err := makeDir(dir); err != nil {
		t.Fatal(err)
	}
	r := Request{Pod: pod, Volume: &v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}, Dir: dir}
	if _, err := (EmptyDir{}).SetUp(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if have, mode := attributes(t, dir); have != 4321 || mode&unix.S_ISGID == 0 {
		t.Errorf("group %d, mode %o", have, mode)
	}
}
