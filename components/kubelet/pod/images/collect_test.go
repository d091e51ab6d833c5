package images

import (
	"cmp"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri/crifake"
)

// TestCollect uses images of one MiB each on a disk of a hundred MiB.
func TestCollect(t *testing.T) {
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	for _, tc := range []struct {
		name        string
		taken       int // in MiB
		high        int // percent; 0 means 85
		all         bool
		minAge, max time.Duration
		want        string // removed images in this order
		err         error
	}{
		{name: "below the threshold", taken: 84},
		{name: "least recently used first", taken: 85, want: "never older newer"},
		{name: "until the low threshold", taken: 85, minAge: time.Minute, want: "older newer", err: ErrFull},
		{name: "delete all", taken: 10, all: true, want: "never older newer"},
		{name: "nothing to delete", taken: 99, minAge: 24 * time.Hour, err: ErrFull},
		{name: "unused too long, below the threshold", taken: 10, max: 90 * time.Minute, want: "older"},
		{name: "images unused too long", taken: 85, max: 90 * time.Minute, want: "older"},
		{name: "GC disabled by threshold 100", taken: 100, high: 100},
		{name: "threshold 100, unused too long", taken: 10, high: 100, max: 90 * time.Minute, want: "older"},
		{name: "threshold 100, eviction needs space", taken: 100, high: 100, all: true, want: "never older newer"},
		{name: "unused too long and above the threshold", taken: 90, max: 90 * time.Minute, want: "older never newer", err: ErrFull},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rt := crifake.New("never", "older", "newer", "pinned", "used", "volume")
			rt.Pin("pinned", true)
			if _, err := rt.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{Config: &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: "used"},
				Mounts: []*runtimeapi.Mount{{HostPath: "/x"}, {Image: &runtimeapi.ImageSpec{Image: "volume"}}},
			}}); err != nil {
				t.Fatal(err)
			}
			removed := func() (ids []string) {
				for _, call := range rt.Calls() {
					if id, ok := strings.CutPrefix(call, "RemoveImage sha256:"); ok {
						ids = append(ids, id)
					}
				}
				return ids
			}
			c := &Collector{
				CRI: rt.Client(), High: cmp.Or(tc.high, 85), Low: 82, MinAge: tc.minAge, MaxAge: tc.max, Log: slog.New(slog.DiscardHandler),
				seen: map[string]imageTimes{
					"sha256:older": {first: ago(3 * time.Hour), used: ago(2 * time.Hour)}, "sha256:newer": {first: ago(4 * time.Hour), used: ago(time.Hour)},
					"sha256:pinned": {first: ago(5 * time.Hour)}, "sha256:used": {first: ago(5 * time.Hour)},
				},
			}
			c.measure = func(_ string, to *unix.Statfs_t) error {
				*to = unix.Statfs_t{Bsize: 1 << 20, Blocks: 100, Bavail: uint64(100 - tc.taken + len(removed()))}
				return nil
			}
			if err := c.Collect(t.Context(), tc.all); !errors.Is(err, tc.err) {
				t.Errorf("got %v, want %v", err, tc.err)
			}
			if got := removed(); !slices.Equal(got, strings.Fields(tc.want)) {
				t.Errorf("removed %v, want %s", got, tc.want)
			}
		})
	}
}

// TestPercent checks that usage is rounded up to whole percents.
func TestPercent(t *testing.T) {
	for _, c := range []struct{ capacity, taken, want int64 }{{1000, 850, 85}, {1000, 841, 85}, {1000, 840, 84}, {1000, 0, 0}, {1000, 1000, 100}} {
		if got := percent(c.capacity, c.taken); got != c.want {
			t.Errorf("%d of %d: %d%%, want %d%%", c.taken, c.capacity, got, c.want)
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 20 << 30: "20.0 GiB", 5 << 60: "5.0 EiB"} {
		if got := size(n); got != want {
			t.Errorf("%d bytes are %q, want %q", n, got, want)
		}
	}
}
