package kubelet

import (
	"context"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"hyperkube/components/kubelet/cri/crifake"
	"hyperkube/internal/cgroup"
)

// TestSlices: with a runtime that names cgroups as systemd does, the cgroups that
// pods share are made by those names, whatever was asked before the runtime told.
func TestSlices(t *testing.T) {
	groups, err := cgroup.Open()
	if err != nil || os.Getuid() != 0 {
		t.Skipf("needs cgroups and root: %v", err)
	}
	raw, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	root := fmt.Sprintf("/hk-test-slices-%d", os.Getpid())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := groups.Remove(ctx, root); err != nil {
			t.Error(err)
		}
	})
	systemd := func(rt *crifake.Runtime) { rt.Systemd = true }
	k, _, _ := startWith(t, systemd, func(c *Config) {
		c.NoCgroups, c.Layout.CgroupRoot, c.OOMScore = false, root, &score
	})
	want := path.Join(root, "kubepods.slice")
	eventually(t, "the cgroups are made", func() bool { return groups.Exists(path.Join(want, "kubepods-besteffort.slice")) })
	if !groups.Exists(path.Join(want, "kubepods-burstable.slice")) || groups.Exists(path.Join(root, "kubepods")) {
		t.Errorf("wanted slices in %s alone", root)
	}
	if got := k.kubepods(); got != want {
		t.Errorf("all pods are in %s, want %s", got, want)
	}
}
