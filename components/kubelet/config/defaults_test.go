package config

import "testing"

// TestEvictionHardFullDisk checks the thresholds of small, large and unknown disks.
func TestEvictionHardFullDisk(t *testing.T) {
	for _, c := range []struct {
		size int64
		want string
	}{{0, "5%"}, {8 << 30, "5%"}, {39 << 30, "5%"}, {40 << 30, "2Gi"}, {2 << 40, "2Gi"}} {
		hard := EvictionHardFullDisk(c.size, 8<<30)
		if got := hard["nodefs.available"]; got != c.want {
			t.Errorf("nodefs.available of a disk of %d GiB is %s, want %s", c.size>>30, got, c.want)
		}
		if hard["imagefs.available"] != "5%" || hard["memory.available"] != EvictionHard()["memory.available"] {
			t.Errorf("other thresholds: %v", hard)
		}
	}
}
