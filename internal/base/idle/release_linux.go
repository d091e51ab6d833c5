package idle

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// release removes clean file pages from the address space of this process: the executable and the
// etcd database. The pages stay in the page cache, from which the kernel can evict them under
// memory pressure. Pages that are accessed again are mapped again, 16 at a time, without reading
// the disk.
func release() {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer f.Close()
	ranges, err := cleanPages(f)
	if err != nil {
		return
	}
	for _, r := range ranges {
		// If this fails, the pages remain mapped.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, r.start, r.end-r.start, unix.MADV_DONTNEED)
	}
}

// mapped returns the number of resident bytes of file mappings and shared memory, or zero if the
// kernel does not report it.
func mapped() uint64 {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data))
	if len(fields) < 3 {
		return 0
	}
	n, err := strconv.ParseUint(fields[2], 10, 64)
	if err != nil {
		return 0
	}
	return n * uint64(os.Getpagesize())
}

// pages is a range of virtual addresses: end is not included.
type pages struct{ start, end uintptr }

// cleanPages returns the file mappings that this process cannot write to and that contain no
// private pages, so that no data is lost by dropping them. smaps has the format of /proc/PID/smaps.
func cleanPages(smaps io.Reader) ([]pages, error) {
	var out []pages
	var current *pages
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		line := lines.Bytes()
		if name, rest, ok := bytes.Cut(line, []byte(":")); ok && !bytes.ContainsAny(name, " -") {
			if current != nil && string(name) == "Anonymous" && string(bytes.TrimSpace(rest)) == "0 kB" {
				out = append(out, *current)
			}
			continue
		}
		current = nil
		fields := strings.Fields(string(line))
		if len(fields) < 6 || !strings.HasPrefix(fields[5], "/") || !strings.HasPrefix(fields[1], "r-") {
			continue
		}
		var p pages
		if _, err := fmt.Sscanf(fields[0], "%x-%x", &p.start, &p.end); err != nil || p.end <= p.start {
			return nil, fmt.Errorf("parsing the memory mappings of this process: %q", line)
		}
		current = &p
	}
	return out, lines.Err()
}
