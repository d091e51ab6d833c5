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

// Unlimited, as a MemoryLimit, PidsLimit or CPUQuota, takes the limit away.
const Unlimited int64 = -1

// Resources is what a cgroup may use. Zero values are left as they are.
type Resources struct {
	// CPUShares is the weight in the units of version 1: 2 to 262144, 1024
	// for one CPU requested. It is converted for version 2.
	CPUShares uint64
	// CPUQuota is microseconds of CPU time in each CPUPeriod; Unlimited for
	// no bound.
	CPUQuota int64
	// CPUPeriod is in microseconds; zero with a quota means 100000.
	CPUPeriod uint64
	// CPUSetCPUs and CPUSetMems are lists such as "0-3,5".
	CPUSetCPUs, CPUSetMems string
	// MemoryLimit is in bytes.
	MemoryLimit int64
	// PidsLimit is the number of processes and threads.
	PidsLimit int64
	// HugepageLimits are bytes by page size as the kernel names it: "2MB".
	HugepageLimits map[string]uint64
	// Unified are files of version 2 and their values, written last. They
	// are an error on version 1.
	Unified map[string]string
}

// CPUWeight converts the CPU shares of version 1 to the weight of version 2,
// so that the default of one, 1024, becomes the default of the other, 100:
// the conversion that container runtimes agree on since 2025.
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

// Set writes what resources asks for. A cgroup that lacks a controller for
// something asked is an error that names it.
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

func (m *Manager) set(controller, cgroup, file, value string) error {
	dir := m.Dir(controller, cgroup)
	if dir == "" {
		return fmt.Errorf("this kernel has no %s controller", controller)
	}
	if err := write(filepath.Join(dir, file), value); err != nil {
		return fmt.Errorf("writing %q to %s: %w", value, file, err)
	}
	return nil
}

func (m *Manager) setV1(cgroup string, r Resources) error {
	if len(r.Unified) > 0 {
		return errors.New("unified resources need cgroup version 2")
	}
	if r.CPUShares != 0 {
		if err := m.set("cpu", cgroup, "cpu.shares", strconv.FormatUint(max(r.CPUShares, 2), 10)); err != nil {
			return err
		}
	}
	if r.CPUPeriod != 0 {
		// A period that the old quota is too small for is refused until the
		// new quota stands.
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

func (m *Manager) setV2(cgroup string, r Resources) error {
	if r.CPUShares != 0 {
		if err := m.set("cpu", cgroup, "cpu.weight", strconv.FormatUint(CPUWeight(r.CPUShares), 10)); err != nil {
			return err
		}
	}
	if r.CPUQuota != 0 || r.CPUPeriod != 0 {
		// The kernel keeps the period when only the quota is written.
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

// setHugepages passes over limits of zero on kernels without the controller:
// nobody can use what is not there.
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

func orMax(limit int64) string {
	if limit < 0 {
		return "max"
	}
	return strconv.FormatInt(limit, 10)
}
