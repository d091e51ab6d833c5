// Package nodestatus registers the node with the API server and updates its status and lease.
package nodestatus

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Machine describes the hardware, the kernel and the operating system of the node. Sizes are in bytes.
type Machine struct {
	CPUs                        int64
	MemoryBytes, SwapBytes      int64
	DiskBytes, Inodes           int64
	Hugepages                   map[string]int64 // bytes by page size such as "2Mi"
	MachineID, SystemUUID, Boot string
	Kernel, OSImage             string
	// UserNamespace means that the kubelet runs in a user namespace whose root user is not the machine's.
	UserNamespace bool
}

// ReadMachine reads the machine's properties. disk is a path on the file system whose size is the node's
// ephemeral storage. Properties that are unknown are empty; missing memory or disk sizes are an error.
func ReadMachine(disk string) (Machine, error) {
	m := Machine{CPUs: int64(goruntime.NumCPU()), Hugepages: map[string]int64{}}
	info, err := MemInfo()
	if err != nil {
		return m, err
	}
	m.MemoryBytes, m.SwapBytes = info["MemTotal"], info["SwapTotal"]
	var fs unix.Statfs_t
	if err := unix.Statfs(disk, &fs); err != nil {
		return m, fmt.Errorf("getting file system statistics: %w", err)
	}
	m.DiskBytes, m.Inodes = int64(fs.Blocks)*fs.Bsize, int64(fs.Files)
	m.MachineID = text("/etc/machine-id")
	m.SystemUUID = text("/sys/class/dmi/id/product_uuid")
	if m.SystemUUID == "" {
		m.SystemUUID = m.MachineID
	}
	m.Boot = text("/proc/sys/kernel/random/boot_id")
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return m, fmt.Errorf("getting the kernel version: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(uts.Release[:])
	m.OSImage = osImage()
	m.UserNamespace = inUserNamespace("/proc/self/ns/user")
	dirs, err := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-*kB")
	if err != nil {
		return m, err
	}
	for _, d := range dirs {
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(d), "hugepages-"), "kB"), 10, 64)
		if err != nil {
			continue
		}
		count, err := strconv.ParseInt(text(filepath.Join(d, "nr_hugepages")), 10, 64)
		if err != nil {
			continue
		}
		m.Hugepages[resource.NewQuantity(kb<<10, resource.BinarySI).String()] = count * kb << 10
	}
	return m, nil
}

// initialUserNamespace is the inode number of the initial user namespace, which is the same on every
// machine.
const initialUserNamespace = 0xeffffffd

// inUserNamespace reports whether the namespace file is that of a user namespace other than the
// initial one.
func inUserNamespace(path string) bool {
	var info unix.Stat_t
	return unix.Stat(path, &info) == nil && info.Ino != initialUserNamespace
}

// text returns the trimmed content of a file, or "" if it cannot be read.
func text(path string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// osImage returns the name of the operating system from /etc/os-release, or "Unknown".
func osImage() string {
	f, err := os.Open("/etc/os-release")
	if err != nil {
		return "Unknown"
	}
	defer f.Close()
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		if v, ok := strings.CutPrefix(scan.Text(), "PRETTY_NAME="); ok {
			if name, err := strconv.Unquote(v); err == nil {
				return name
			}
			return v
		}
	}
	return "Unknown"
}

// MemInfo returns the values of /proc/meminfo by name. Sizes are converted to bytes.
func MemInfo() (map[string]int64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return nil, fmt.Errorf("reading meminfo: %w", err)
	}
	defer f.Close()
	out := map[string]int64{}
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		name, rest, ok := strings.Cut(scan.Text(), ":")
		fields := strings.Fields(rest)
		if !ok || len(fields) == 0 {
			continue
		}
		n, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			continue
		}
		if len(fields) > 1 && fields[1] == "kB" {
			n <<= 10
		}
		out[name] = n
	}
	if err := scan.Err(); err != nil {
		return nil, fmt.Errorf("reading meminfo: %w", err)
	}
	return out, nil
}

// Capacity returns the machine's resources, and maxPods as its number of pods, for the capacity of the Node.
func (m Machine) Capacity(maxPods int64) v1.ResourceList {
	out := v1.ResourceList{
		v1.ResourceCPU:              *resource.NewQuantity(m.CPUs, resource.DecimalSI),
		v1.ResourceMemory:           *resource.NewQuantity(m.MemoryBytes, resource.BinarySI),
		v1.ResourcePods:             *resource.NewQuantity(maxPods, resource.DecimalSI),
		v1.ResourceEphemeralStorage: *resource.NewQuantity(m.DiskBytes, resource.BinarySI),
	}
	for size, bytes := range m.Hugepages {
		out[v1.ResourceName(v1.ResourceHugePagesPrefix+size)] = *resource.NewQuantity(bytes, resource.BinarySI)
	}
	return out
}

// Allocatable returns the resources that pods can request: the capacity without the reserved resources, but
// not less than zero. Huge pages are subtracted from the memory.
func Allocatable(capacity, reserved v1.ResourceList) v1.ResourceList {
	out := v1.ResourceList{}
	for name, q := range capacity {
		left := q.DeepCopy()
		if r, ok := reserved[name]; ok {
			left.Sub(r)
		}
		if left.Sign() < 0 {
			left.Set(0)
		}
		out[name] = left
	}
	memory := out[v1.ResourceMemory]
	for name, q := range capacity {
		if strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			memory.Sub(q)
		}
	}
	if memory.Sign() < 0 {
		memory.Set(0)
	}
	out[v1.ResourceMemory] = memory
	return out
}
