package process

import (
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// OOMScoreAdj returns the OOM score adjustment nearest to want that a child of this process can
// have. Lowering it below that of this process requires CAP_SYS_RESOURCE, which may be missing.
func OOMScoreAdj(want int) int {
	if floor, bound := oomFloor(); bound {
		return max(want, floor)
	}
	return want
}

// oomFloor returns the OOM score adjustment of this process, and whether that is the lowest one
// that its children can have. The result is computed once.
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
	score, err := strconv.Atoi(strings.TrimSpace(string(text)))
	return score, err == nil
})
