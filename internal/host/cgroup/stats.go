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

// Stats is the resource usage of a cgroup and all cgroups below it. Values that the kernel does not
// report are zero.
type Stats struct {
	// Time is the time of the measurement.
	Time time.Time
	// CPUNanoseconds is the CPU time used since the cgroup was created.
	CPUNanoseconds uint64
	// MemoryUsage is in bytes, page cache included.
	MemoryUsage uint64
	// MemoryWorkingSet is MemoryUsage without inactive page cache. Eviction and `kubectl top` use
	// it.
	MemoryWorkingSet uint64
	// MemoryRSS is anonymous memory in bytes.
	MemoryRSS uint64
	// MemoryLimit is in bytes; zero for none.
	MemoryLimit uint64
	// PageFaults and MajorPageFaults count since the cgroup was created.
	PageFaults, MajorPageFaults uint64
	// SwapUsage is in bytes.
	SwapUsage uint64
	// Pids is the number of processes and threads.
	Pids uint64
	// OOMKills is the number of processes that the kernel's OOM killer killed.
	OOMKills uint64
}

// Stats reads the resource usage of the cgroup. The error wraps ErrNotExist if the cgroup does not
// exist.
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

// statsV1 reads the usage from the hierarchies of version 1. It skips controllers that the machine does not have.
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
		// If there is no limit, the kernel reports a number near the maximum.
		if limit := stat["hierarchical_memory_limit"]; limit < math.MaxInt64/2 {
			s.MemoryLimit = limit
		}
		if control, err := readTable(dir, "memory.oom_control"); err == nil {
			s.OOMKills = control["oom_kill"]
		}
	}
	if dir := m.Dir("pids", cgroup); dir != "" {
		// The root cgroup does not have this file.
		s.Pids, _ = readUint(dir, "pids.current")
	}
	return nil
}

// statsV2 reads the usage from the unified hierarchy. The memory of the root cgroup, for which the kernel has no total,
// is the sum of its parts.
func (m *Manager) statsV2(cgroup string, s *Stats) error {
	dir := m.Dir("", cgroup)
	cpu, err := readTable(dir, "cpu.stat")
	if err != nil {
		return err
	}
	s.CPUNanoseconds = cpu["usage_usec"] * 1000
	stat, err := readTable(dir, "memory.stat")
	if err != nil && !notExist(err) {
		return err
	}
	usage, err := readUint(dir, "memory.current")
	if notExist(err) {
		// The root cgroup does not have this file.
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

// OOMKills returns the number of processes of the cgroup and all cgroups below it that the OOM
// killer killed. It returns zero if the number is not available.
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

// without returns usage minus part, or zero if part is larger, because the kernel does not update both at the same
// time.
func without(usage, part uint64) uint64 {
	if part > usage {
		return 0
	}
	return usage - part
}

// readUint reads a file that contains one number. It returns zero for "max".
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

// readTable reads a file of lines that consist of a name and a number. Other lines are ignored.
func readTable(dir, file string) (map[string]uint64, error) {
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return nil, err
	}
	return parseTable(string(data)), nil
}

// parseTable parses text like the content of cpu.stat: lines of a name and a number. It ignores other lines.
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
