package cgroup

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Stats is what a cgroup and all below it use. Values that the kernel does not
// tell are zero.
type Stats struct {
	// Time is when it was measured.
	Time time.Time
	// CPUNanoseconds of CPU time used since the cgroup was made.
	CPUNanoseconds uint64
	// MemoryUsage is in bytes, page cache included.
	MemoryUsage uint64
	// MemoryWorkingSet is MemoryUsage without inactive page cache: what
	// eviction and `kubectl top` go by.
	MemoryWorkingSet uint64
	// MemoryRSS is anonymous memory in bytes.
	MemoryRSS uint64
	// MemoryLimit is in bytes; zero for none.
	MemoryLimit uint64
	// PageFaults and MajorPageFaults since the cgroup was made.
	PageFaults, MajorPageFaults uint64
	// SwapUsage is in bytes.
	SwapUsage uint64
	// Pids is the number of processes and threads.
	Pids uint64
	// OOMKills is how many processes the kernel killed for want of memory.
	OOMKills uint64
}

// Stats measures the cgroup. It is ErrNotExist when there is none.
func (m *Manager) Stats(cgroup string) (Stats, error) {
	s := Stats{Time: time.Now()}
	var err error
	if m.Unified() {
		err = m.statsV2(cgroup, &s)
	} else {
		err = m.statsV1(cgroup, &s)
	}
	if err != nil {
		return Stats{}, fmt.Errorf("measuring cgroup %s: %w", cgroup, err)
	}
	return s, nil
}

func (m *Manager) statsV1(cgroup string, s *Stats) error {
	if dir := m.Dir("cpuacct", cgroup); dir != "" {
		n, err := readUint(dir, "cpuacct.usage")
		if err != nil {
			return err
		}
		s.CPUNanoseconds = n
	}
	if dir := m.Dir("memory", cgroup); dir != "" {
		usage, err := readUint(dir, "memory.usage_in_bytes")
		if err != nil {
			return err
		}
		stat, err := readTable(dir, "memory.stat")
		if err != nil {
			return err
		}
		s.MemoryUsage = usage
		s.MemoryWorkingSet = without(usage, stat["total_inactive_file"])
		s.MemoryRSS = stat["total_rss"]
		s.PageFaults, s.MajorPageFaults = stat["total_pgfault"], stat["total_pgmajfault"]
		s.SwapUsage = stat["total_swap"]
		// No limit shows as a number near the greatest one.
		if limit := stat["hierarchical_memory_limit"]; limit < math.MaxInt64/2 {
			s.MemoryLimit = limit
		}
		if control, err := readTable(dir, "memory.oom_control"); err == nil {
			s.OOMKills = control["oom_kill"]
		}
	}
	if dir := m.Dir("pids", cgroup); dir != "" {
		// The root has no such file.
		s.Pids, _ = readUint(dir, "pids.current")
	}
	return nil
}

func (m *Manager) statsV2(cgroup string, s *Stats) error {
	dir := m.Dir("", cgroup)
	cpu, err := readTable(dir, "cpu.stat")
	if err != nil {
		return err
	}
	s.CPUNanoseconds = cpu["usage_usec"] * 1000
	stat, err := readTable(dir, "memory.stat")
	if err != nil && !gone(err) {
		return err
	}
	usage, err := readUint(dir, "memory.current")
	if gone(err) {
		// The root has no such file.
		usage = stat["anon"] + stat["file"] + stat["kernel"]
	} else if err != nil {
		return err
	}
	s.MemoryUsage = usage
	s.MemoryWorkingSet = without(usage, stat["inactive_file"])
	s.MemoryRSS = stat["anon"]
	s.PageFaults, s.MajorPageFaults = stat["pgfault"], stat["pgmajfault"]
	s.SwapUsage, _ = readUint(dir, "memory.swap.current")
	s.MemoryLimit, _ = readUint(dir, "memory.max")
	s.Pids, _ = readUint(dir, "pids.current")
	if events, err := readTable(dir, "memory.events"); err == nil {
		s.OOMKills = events["oom_kill"]
	}
	return nil
}

// OOMKills returns how many processes of the cgroup and below the kernel
// killed for want of memory; zero if it cannot tell.
func (m *Manager) OOMKills(cgroup string) uint64 {
	dir, file := m.Dir("memory", cgroup), "memory.oom_control"
	if m.Unified() {
		file = "memory.events"
	}
	if dir == "" {
		return 0
	}
	table, err := readTable(dir, file)
	if err != nil {
		return 0
	}
	return table["oom_kill"]
}

func without(usage, part uint64) uint64 {
	if part > usage {
		return 0
	}
	return usage - part
}

// readUint reads a file with one number; "max" is zero.
func readUint(dir, file string) (uint64, error) {
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(data))
	if text == "max" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

// readTable reads a file of lines of a name and a number.
func readTable(dir, file string) (map[string]uint64, error) {
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return nil, err
	}
	return parseTable(string(data)), nil
}

func parseTable(text string) map[string]uint64 {
	table := map[string]uint64{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			table[name] = n
		}
	}
	return table
}
