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

// release takes the pages of files that this process only reads out of it: its
// program, and the database of etcd. They stay in the page cache, which the
// kernel may empty when it needs memory, and those that are looked at again are
// mapped again, 16 at a time, without a read.
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
		// A failure leaves the pages where they are.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, r.start, r.end-r.start, unix.MADV_DONTNEED)
	}
}

// mapped is how many bytes of files, shared memory included, this process has
// mapped; zero when the kernel does not tell.
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

// pages are a range of addresses.
type pages struct{ start, end uintptr }

// cleanPages returns the mappings of files which this process cannot write to
// and of which it has no page of its own: nothing is lost by dropping them. It
// reads what /proc/PID/smaps says.
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
			return nil, fmt.Errorf("reading the mappings of this process: %q", line)
		}
		current = &p
	}
	return out, lines.Err()
}
