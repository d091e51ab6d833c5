package cgroup

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Unlimited is the value of MemoryLimit, PidsLimit or CPUQuota that removes the limit.
const Unlimited int64 = -1

// Resources are the resource limits that Create and Set apply to a cgroup. Zero values leave the
// current setting unchanged.
type Resources struct {
	// CPUShares is the CPU weight in the units of version 1: 2 to 262144, where 1024 corresponds to
	// one requested CPU. It is converted for version 2.
	CPUShares uint64
	// CPUQuota is the CPU time in microseconds that is available in each CPUPeriod, or Unlimited.
	CPUQuota int64
	// CPUPeriod is in microseconds. If it is zero and CPUQuota is set, 100000 is used.
	CPUPeriod uint64
	// CPUSetCPUs and CPUSetMems are lists of CPUs and memory nodes, such as "0-3,5".
	CPUSetCPUs, CPUSetMems string
	// MemoryLimit is in bytes.
	MemoryLimit int64
	// PidsLimit is the maximum number of processes and threads.
	PidsLimit int64
	// HugepageLimits maps page sizes, as the kernel names them ("2MB"), to limits in bytes.
	HugepageLimits map[string]uint64
	// Unified maps names of version 2 files to values. They are written last. On version 1 they
	// cause an error.
	Unified map[string]string
}

// CPUWeight converts the CPU shares of version 1 to the weight of version 2, between 1 and 10000. It returns 0, which
// means unchanged, for 0. The default of version 1, 1024, becomes the default of version 2, 100. Container runtimes use
// this conversion since 2025.
func CPUWeight(shares uint64) uint64 {
	switch {
	case shares == 0:
		return 0
	case shares <= 2:
		return 1
	case shares >= 262144:
		return 10000
	}
	l := math.Log2(float64(shares))
	return uint64(math.Ceil(math.Pow(10, (l*l+125*l)/612-7.0/34)))
}

// Set applies the resources to an existing cgroup. It returns an error that names the controller if
// r needs one that the machine does not have.
func (m *Manager) Set(cgroup string, r Resources) error {
	var err error
	if m.Unified() {
		err = m.setV2(cgroup, r)
	} else {
		err = m.setV1(cgroup, r)
	}
	if err != nil {
		return fmt.Errorf("setting resources of cgroup %s: %w", cgroup, err)
	}
	return nil
}

// set writes value to a file of the cgroup in the hierarchy of the controller. It returns an error if version 1 does
// not have the controller.
func (m *Manager) set(controller, cgroup, file, value string) error {
	dir := m.Dir(controller, cgroup)
	if dir == "" {
		return fmt.Errorf("kernel has no %s controller", controller)
	}
	if err := write(filepath.Join(dir, file), value); err != nil {
		return fmt.Errorf("writing %q to %s: %w", value, file, err)
	}
	return nil
}

// setV1 implements Set for version 1. It stops at the first error.
func (m *Manager) setV1(cgroup string, r Resources) error {
	if len(r.Unified) > 0 {
		return errors.New("unified resources require cgroup version 2")
	}
	if r.CPUShares != 0 {
		if err := m.set("cpu", cgroup, "cpu.shares", strconv.FormatUint(max(r.CPUShares, 2), 10)); err != nil {
			return err
		}
	}
	if r.CPUPeriod != 0 {
		// The kernel rejects a period that is too short for the current quota. In that case, set
		// the new quota first.
		if err := m.set("cpu", cgroup, "cpu.cfs_period_us", strconv.FormatUint(r.CPUPeriod, 10)); err != nil {
			if !errors.Is(err, unix.EINVAL) || r.CPUQuota == 0 {
				return err
			}
			if err := m.set("cpu", cgroup, "cpu.cfs_quota_us", strconv.FormatInt(r.CPUQuota, 10)); err != nil {
				return err
			}
			if err := m.set("cpu", cgroup, "cpu.cfs_period_us", strconv.FormatUint(r.CPUPeriod, 10)); err != nil {
				return err
			}
		}
	}
	if r.CPUQuota != 0 {
		if err := m.set("cpu", cgroup, "cpu.cfs_quota_us", strconv.FormatInt(r.CPUQuota, 10)); err != nil {
			return err
		}
	}
	if err := m.setCPUSet(cgroup, r); err != nil {
		return err
	}
	if r.MemoryLimit != 0 {
		if err := m.set("memory", cgroup, "memory.limit_in_bytes", strconv.FormatInt(r.MemoryLimit, 10)); err != nil {
			return err
		}
	}
	if r.PidsLimit != 0 {
		if err := m.set("pids", cgroup, "pids.max", orMax(r.PidsLimit)); err != nil {
			return err
		}
	}
	return m.setHugepages(cgroup, r, "limit_in_bytes")
}

// setV2 implements Set for version 2. It stops at the first error. If only CPUPeriod is set, it keeps the quota.
func (m *Manager) setV2(cgroup string, r Resources) error {
	if r.CPUShares != 0 {
		if err := m.set("cpu", cgroup, "cpu.weight", strconv.FormatUint(CPUWeight(r.CPUShares), 10)); err != nil {
			return err
		}
	}
	if r.CPUQuota != 0 || r.CPUPeriod != 0 {
		// When only the quota is written, the kernel keeps the period.
		quota := "max"
		switch {
		case r.CPUQuota > 0:
			quota = strconv.FormatInt(r.CPUQuota, 10)
		case r.CPUQuota == 0:
			old, err := os.ReadFile(filepath.Join(m.Dir("cpu", cgroup), "cpu.max"))
			if fields := strings.Fields(string(old)); err == nil && len(fields) > 0 {
				quota = fields[0]
			}
		}
		if r.CPUPeriod != 0 {
			quota += " " + strconv.FormatUint(r.CPUPeriod, 10)
		}
		if err := m.set("cpu", cgroup, "cpu.max", quota); err != nil {
			return err
		}
	}
	if err := m.setCPUSet(cgroup, r); err != nil {
		return err
	}
	if r.MemoryLimit != 0 {
		if err := m.set("memory", cgroup, "memory.max", orMax(r.MemoryLimit)); err != nil {
			return err
		}
	}
	if r.PidsLimit != 0 {
		if err := m.set("pids", cgroup, "pids.max", orMax(r.PidsLimit)); err != nil {
			return err
		}
	}
	if err := m.setHugepages(cgroup, r, "max"); err != nil {
		return err
	}
	for file, value := range r.Unified {
		if strings.Contains(file, "/") {
			return fmt.Errorf("%q is not the name of a cgroup file", file)
		}
		if err := m.set("", cgroup, file, value); err != nil {
			return err
		}
	}
	return nil
}

// setCPUSet applies CPUSetCPUs and CPUSetMems, unless they are empty.
func (m *Manager) setCPUSet(cgroup string, r Resources) error {
	if r.CPUSetCPUs != "" {
		if err := m.set("cpuset", cgroup, "cpuset.cpus", r.CPUSetCPUs); err != nil {
			return err
		}
	}
	if r.CPUSetMems != "" {
		return m.set("cpuset", cgroup, "cpuset.mems", r.CPUSetMems)
	}
	return nil
}

// setHugepages applies r.HugepageLimits. suffix is the end of the names of the kernel's files. It
// ignores limits of zero on kernels without the hugetlb controller, because huge pages are not
// available there.
func (m *Manager) setHugepages(cgroup string, r Resources, suffix string) error {
	has := slices.Contains(m.Controllers(), "hugetlb")
	for size, limit := range r.HugepageLimits {
		if !has && limit == 0 {
			continue
		}
		file := "hugetlb." + size + "." + suffix
		if strings.Contains(size, "/") {
			return fmt.Errorf("%q is not a page size", size)
		}
		if err := m.set("hugetlb", cgroup, file, strconv.FormatUint(limit, 10)); err != nil {
			return err
		}
	}
	return nil
}

// orMax returns limit for a kernel file: "max", which is no limit, if limit is negative.
func orMax(limit int64) string {
	if limit < 0 {
		return "max"
	}
	return strconv.FormatInt(limit, 10)
}
