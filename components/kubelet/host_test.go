package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"hyperkube/components/kubelet/config"
	"hyperkube/components/kubelet/cri/crifake"
	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/testing/testwait"
)

// TestSlices checks that with a runtime that uses the systemd cgroup driver the shared cgroups of
// pods are created with systemd's names, even if names were used before the runtime reported its
// driver.
func TestSlices(t *testing.T) {
	groups, err := cgroup.Open()
	if err != nil || os.Getuid() != 0 {
		t.Skipf("needs cgroups and root: %v", err)
	}
	root := fmt.Sprintf("/hk-test-slices-%d", os.Getpid())
	before, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile("/proc/self/oom_score_adj", before, 0); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := groups.Remove(ctx, root); err != nil {
			t.Error(err)
		}
	})
	systemd := func(rt *crifake.Runtime) { rt.Systemd = true }
	var log lines
	k, kube, _ := startWith(t, systemd, func(c *config.Config, deps *Dependencies) {
		c.Cgroups.Off, c.Layout.CgroupRoot, deps.Log = false, root, slog.New(slog.NewTextHandler(&log, nil))
	})
	want := path.Join(root, "kubepods.slice")
	testwait.Until(t, "the cgroups were created", func() bool { return groups.Exists(path.Join(want, "kubepods-besteffort.slice")) })
	if !groups.Exists(path.Join(want, "kubepods-burstable.slice")) || groups.Exists(path.Join(root, "kubepods")) {
		t.Errorf("want slices only in %s", root)
	}
	if got := k.cgroupNames().OfClass(v1.PodQOSGuaranteed); got != want {
		t.Errorf("all pods are in %s, want %s", got, want)
	}
	// This event is emitted after the last cgroup operation. If the kubelet may not create cgroups,
	// no operations are attempted.
	testwait.Until(t, "the pods cgroup to be limited", func() bool {
		list, err := kube.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(list.Items, func(e v1.Event) bool { return e.Reason == "NodeAllocatableEnforced" })
	})
	if log.has("OOM score adjustment") {
		t.Error("the kubelet sets an OOM score adjustment that is not permitted")
	}
}

// TestDriverOfTheConfiguration checks that the configured cgroup driver is used if the runtime
// cannot report its driver.
func TestDriverOfTheConfiguration(t *testing.T) {
	old := func(rt *crifake.Runtime) {
		rt.Fail("RuntimeConfig", status.Error(codes.Unimplemented, "unknown method"))
	}
	k, _, _ := startWith(t, old, func(c *config.Config, _ *Dependencies) {
		if err := c.Apply(&kubeletv1beta1.KubeletConfiguration{CgroupDriver: "systemd"}); err != nil {
			t.Fatal(err)
		}
	})
	testwait.Until(t, "the runtime was called", k.pods.synced.Known)
	if got := k.newBackend().Configz().(*kubeletv1beta1.KubeletConfiguration).CgroupDriver; got != "systemd" {
		t.Errorf("in force is %q", got)
	}
	if got := path.Base(k.cgroupNames().OfClass(v1.PodQOSGuaranteed)); got != "kubepods.slice" {
		t.Errorf("all pods are in %s", got)
	}
	metrics := make(chan prometheus.Metric, 10000)
	k.metrics.Collect(metrics)
	close(metrics)
	losing := false
	for m := range metrics {
		losing = losing || strings.Contains(m.Desc().String(), "kubelet_cri_losing_support")
	}
	if !losing {
		t.Error("cri_losing_support is not reported")
	}
}

// lines is a log that is safe for concurrent use.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) has(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), part)
}
