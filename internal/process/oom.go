package process

import (
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// OOMScoreAdj returns the adjustment nearest to want that a child of this
// process can have: to lower its own takes a privilege that not every machine
// gives.
func OOMScoreAdj(want int) int {
	if floor, bound := oomFloor(); bound {
		return max(want, floor)
	}
	return want
}

// oomFloor returns this process's own adjustment, and whether it is bound to
// it.
var oomFloor = sync.OnceValues(func() (int, bool) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err == nil && data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0 {
		return 0, false
	}
	text, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return 0, false
	}
	own, err := strconv.Atoi(strings.TrimSpace(string(text)))
	return own, err == nil
})
