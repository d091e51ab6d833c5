package csi

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"hyperkube/components/kubelet/pod/volume"
)

// limits watches the CSINode, which contains the maximum number of volumes.
func (f *fixture) limits() watch.Interface {
	f.Helper()
	w, err := f.kube.StorageV1().CSINodes().Watch(f.Context(), metav1.ListOptions{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(w.Stop)
	return w
}

func (f *fixture) awaitLimit(w watch.Interface, want int32) {
	f.Helper()
	for {
		select {
		case e := <-w.ResultChan():
			if n, ok := e.Object.(*storagev1.CSINode); ok && len(n.Spec.Drivers) == 1 && *n.Spec.Drivers[0].Allocatable.Count == want {
				return
			}
		case <-time.After(time.Minute):
			f.Fatalf("the CSINode never said %d", want)
		}
	}
}

// answering makes the driver answer NodeGetInfo with the current value of the returned number, which is first
// at the beginning, as the maximum number of volumes.
func (f *fixture) answering(first int64) *atomic.Int64 {
	n := &atomic.Int64{}
	n.Store(first)
	f.driver.MaxVolumes = n.Load
	return n
}

// TestLimitChanges checks that a driver with an update period is queried again for the maximum
// number of volumes.
func TestLimitChanges(t *testing.T) {
	f := newFixture(t)
	max := f.answering(5)
	w := f.limits()
	second := int64(1)
	f.object.Spec.NodeAllocatableUpdatePeriodSeconds = &second
	if _, err := f.kube.StorageV1().CSIDrivers().Update(t.Context(), f.object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.awaitLimit(w, 5)
	max.Store(8)
	f.awaitLimit(w, 8)
}

// TestAttachLimit checks that the kubelet stops waiting for a volume that cannot be attached
// because the node is full, and that it queries the driver for the current maximum.
func TestAttachLimit(t *testing.T) {
	for name, tc := range map[string]struct {
		period int64
		code   codes.Code
		full   bool
	}{
		"limit reached":    {3600, codes.ResourceExhausted, true},
		"another failure":  {3600, codes.Internal, false},
		"no update period": {0, codes.ResourceExhausted, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.answering(3)
			attach, code := true, int32(tc.code)
			f.object.Spec.AttachRequired = &attach
			if tc.period > 0 {
				f.object.Spec.NodeAllocatableUpdatePeriodSeconds = &tc.period
			}
			if _, err := f.kube.StorageV1().CSIDrivers().Update(t.Context(), f.object, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: attachmentName(key{driverName, "vol-1"}, "n")}}
			a.Status.AttachError = &storagev1.VolumeError{ErrorCode: &code}
			if _, err := f.kube.StorageV1().VolumeAttachments().Create(t.Context(), a, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			f.plugin.attachTimeout = time.Millisecond
			_, err := f.set().SetUp(t.Context(), pod("a"), claimed())
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, volume.ErrAttachLimit) != tc.full {
				t.Errorf("got %v", err)
			}
			n, err := f.kube.StorageV1().CSINodes().Get(t.Context(), "n", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			want := int32(f.driver.Max)
			if tc.full {
				want = 3
			}
			if got := *n.Spec.Drivers[0].Allocatable.Count; got != want {
				t.Errorf("limit %d, want %d", got, want)
			}
			f.down("a")
		})
	}
}

// TestAllocatable checks that a driver without a maximum is unlimited.
func TestAllocatable(t *testing.T) {
	if got := allocatable(&csipb.NodeGetInfoResponse{}); got != nil {
		t.Errorf("got %v", got)
	}
	if got := allocatable(&csipb.NodeGetInfoResponse{MaxVolumesPerNode: 1 << 40}); *got.Count != 1<<31-1 {
		t.Errorf("got %d", *got.Count)
	}
}
