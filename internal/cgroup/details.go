package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Details are what is rarely asked for beside Stats: times, limits, and what
// was read and written. Values that the kernel does not tell are zero.
type Details struct {
	// User and System are CPU time.
	User, System time.Duration
	// Periods of the CPU limit, those in which it was reached, and how long
	// was waited for their ends.
	Periods, Throttled uint64
	ThrottledTime      time.Duration
	// In bytes.
	Cache, MappedFile, Kernel, MaxUsage uint64
	ActiveFile, InactiveFile            uint64
	// LimitHits is how often the memory limit was reached.
	LimitHits uint64
	// CPUShares as version 1 counts them, CPUPeriod and CPUQuota in
	// microseconds; no quota is -1.
	CPUShares, CPUPeriod uint64
	CPUQuota             int64
	// Limits in bytes, zero for none: SwapLimit is of memory and swap
	// together, Reservation is what is kept when memory is short.
	SwapLimit, Reservation uint64
	// PidsLimit is zero for none.
	PidsLimit uint64
	// IO by device, as "major:minor".
	IO map[string]IO
}

// IO is what was read from and written to a device.
type IO struct{ ReadBytes, WrittenBytes, Reads, Writes uint64 }

// userHertz is the unit of times in version 1, on every architecture that Go
// knows.
const userHertz = 100

// Details reads them. A cgroup that is not there has none.
func (m *Manager) Details(cgroup string) Details {
	d := Details{CPUQuota: -1, IO: map[string]IO{}}
	if m.Unified() {
		m.detailsV2(m.Dir("", cgroup), &d)
	} else {
		m.detailsV1(cgroup, &d)
	}
	return d
}

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
		d.SwapLimit = limited(readUint(dir, "memory.memsw.limit_in_bytes"))
		d.Reservation = limited(readUint(dir, "memory.soft_limit_in_bytes"))
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

// limited is a limit of version 1, where none is a number near the greatest.
func limited(n uint64, err error) uint64 {
	if err != nil || n >= 1<<62 {
		return 0
	}
	return n
}

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
