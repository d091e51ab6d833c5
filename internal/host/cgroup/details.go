package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Details are statistics of a cgroup that are needed less often than Stats, for cAdvisor's metrics:
// CPU times, limits and I/O. Values that the kernel does not report are zero.
type Details struct {
	// User and System are CPU time.
	User, System time.Duration
	// Periods is the number of CPU quota periods, Throttled the number of them in which the quota
	// was exhausted, and ThrottledTime the total time that processes were throttled.
	Periods, Throttled uint64
	ThrottledTime      time.Duration
	// In bytes.
	Cache, MappedFile, Kernel, MaxUsage uint64
	ActiveFile, InactiveFile            uint64
	// LimitHits is how often the memory limit was reached.
	LimitHits uint64
	// CPUShares is in the units of version 1. CPUPeriod and CPUQuota are in microseconds; CPUQuota
	// is -1 if there is no quota.
	CPUShares, CPUPeriod uint64
	CPUQuota             int64
	// SwapLimit and Reservation are in bytes, zero for none. SwapLimit limits the sum of memory and
	// swap. Reservation is the memory that the kernel protects under memory pressure.
	SwapLimit, Reservation uint64
	// PidsLimit is the maximum number of processes and threads, zero for none.
	PidsLimit uint64
	// IO is keyed by device, as "major:minor".
	IO map[string]IO
}

// IO contains the reads from and writes to one device since the cgroup was created.
type IO struct{ ReadBytes, WrittenBytes, Reads, Writes uint64 }

// userHertz is the unit of CPU times in version 1. It is the same on every architecture that Go
// supports.
const userHertz = 100

// Details reads the details of a cgroup. If the cgroup does not exist, they are zero, and CPUQuota is -1.
func (m *Manager) Details(cgroup string) Details {
	d := Details{CPUQuota: -1, IO: map[string]IO{}}
	if m.Unified() {
		m.detailsV2(m.Dir("", cgroup), &d)
	} else {
		m.detailsV1(cgroup, &d)
	}
	return d
}

// detailsV1 sets the details that the hierarchies of version 1 report for a cgroup.
func (m *Manager) detailsV1(cgroup string, d *Details) {
	if dir := m.Dir("cpuacct", cgroup); dir != "" {
		table, _ := readTable(dir, "cpuacct.stat")
		d.User, d.System = time.Duration(table["user"])*time.Second/userHertz, time.Duration(table["system"])*time.Second/userHertz
	}
	if dir := m.Dir("cpu", cgroup); dir != "" {
		table, _ := readTable(dir, "cpu.stat")
		d.Periods, d.Throttled, d.ThrottledTime = table["nr_periods"], table["nr_throttled"], time.Duration(table["throttled_time"])
		d.CPUShares, _ = readUint(dir, "cpu.shares")
		d.CPUPeriod, _ = readUint(dir, "cpu.cfs_period_us")
		if quota, err := readUint(dir, "cpu.cfs_quota_us"); err == nil { // -1 does not parse
			d.CPUQuota = int64(quota)
		}
	}
	if dir := m.Dir("memory", cgroup); dir != "" {
		table, _ := readTable(dir, "memory.stat")
		d.Cache, d.MappedFile = table["total_cache"], table["total_mapped_file"]
		d.ActiveFile, d.InactiveFile = table["total_active_file"], table["total_inactive_file"]
		d.Kernel, _ = readUint(dir, "memory.kmem.usage_in_bytes")
		d.MaxUsage, _ = readUint(dir, "memory.max_usage_in_bytes")
		d.LimitHits, _ = readUint(dir, "memory.failcnt")
		d.SwapLimit = limitV1(readUint(dir, "memory.memsw.limit_in_bytes"))
		d.Reservation = limitV1(readUint(dir, "memory.soft_limit_in_bytes"))
	}
	if dir := m.Dir("pids", cgroup); dir != "" {
		d.PidsLimit, _ = readUint(dir, "pids.max")
	}
	if dir := m.Dir("blkio", cgroup); dir != "" {
		bytes, _ := os.ReadFile(filepath.Join(dir, "blkio.throttle.io_service_bytes"))
		calls, _ := os.ReadFile(filepath.Join(dir, "blkio.throttle.io_serviced"))
		for i, text := range []string{string(bytes), string(calls)} {
			for line := range strings.Lines(text) { // 8:0 Read 4096
				words := strings.Fields(line)
				if len(words) != 3 {
					continue
				}
				n, err := strconv.ParseUint(words[2], 10, 64)
				if err != nil {
					continue
				}
				io := d.IO[words[0]]
				switch words[1] {
				case "Read":
					*[]*uint64{&io.ReadBytes, &io.Reads}[i] = n
				case "Write":
					*[]*uint64{&io.WrittenBytes, &io.Writes}[i] = n
				}
				d.IO[words[0]] = io
			}
		}
	}
}

// limitV1 converts a limit that was read from a version 1 file. It returns zero, which means no
// limit, if reading failed or the number is near the maximum, with which the kernel represents no
// limit.
func limitV1(n uint64, err error) uint64 {
	if err != nil || n >= 1<<62 {
		return 0
	}
	return n
}

// detailsV2 sets the details that the unified hierarchy reports for the cgroup with the directory dir. It converts the
// CPU weight to shares and adds the limits of memory and swap.
func (m *Manager) detailsV2(dir string, d *Details) {
	table, _ := readTable(dir, "cpu.stat")
	d.User, d.System = time.Duration(table["user_usec"])*time.Microsecond, time.Duration(table["system_usec"])*time.Microsecond
	d.Periods, d.Throttled, d.ThrottledTime = table["nr_periods"], table["nr_throttled"], time.Duration(table["throttled_usec"])*time.Microsecond
	if data, err := os.ReadFile(filepath.Join(dir, "cpu.max")); err == nil {
		quota, period, _ := strings.Cut(strings.TrimSpace(string(data)), " ")
		d.CPUPeriod, _ = strconv.ParseUint(period, 10, 64)
		if n, err := strconv.ParseInt(quota, 10, 64); err == nil {
			d.CPUQuota = n
		}
	}
	if weight, err := readUint(dir, "cpu.weight"); err == nil && weight > 0 {
		d.CPUShares = 2 + (weight-1)*262142/9999
	}
	table, _ = readTable(dir, "memory.stat")
	d.Cache, d.MappedFile, d.Kernel = table["file"], table["file_mapped"], table["kernel"]
	d.ActiveFile, d.InactiveFile = table["active_file"], table["inactive_file"]
	d.MaxUsage, _ = readUint(dir, "memory.peak")
	table, _ = readTable(dir, "memory.events")
	d.LimitHits = table["max"]
	memory, _ := readUint(dir, "memory.max")
	if swap, err := os.ReadFile(filepath.Join(dir, "memory.swap.max")); err == nil && memory > 0 {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(swap)), 10, 64); err == nil {
			d.SwapLimit = memory + n
		}
	}
	d.Reservation, _ = readUint(dir, "memory.low")
	d.PidsLimit, _ = readUint(dir, "pids.max")
	data, _ := os.ReadFile(filepath.Join(dir, "io.stat"))
	for line := range strings.Lines(string(data)) { // 8:0 rbytes=4096 wbytes=0 rios=1 wios=0 …
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		var io IO
		for _, word := range words[1:] {
			key, text, _ := strings.Cut(word, "=")
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				continue
			}
			switch key {
			case "rbytes":
				io.ReadBytes = n
			case "wbytes":
				io.WrittenBytes = n
			case "rios":
				io.Reads = n
			case "wios":
				io.Writes = n
			}
		}
		d.IO[words[0]] = io
	}
}
