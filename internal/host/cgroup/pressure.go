package cgroup

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Stall describes how long processes waited for a resource.
type Stall struct {
	// Total is the time since the cgroup was created.
	Total time.Duration
	// Avg10, Avg60 and Avg300 are the percentages of the last 10, 60 and 300 seconds.
	Avg10, Avg60, Avg300 float64
}

// Pressure is the pressure stall information (PSI) of a resource.
//
// https://docs.kernel.org/accounting/psi.html
type Pressure struct {
	// Some is the time in which at least one process was stalled, Full the time in which all
	// processes were stalled.
	Some, Full Stall
}

// Pressures is the pressure stall information of a cgroup and all cgroups below it. A field is nil
// if the kernel does not report it.
type Pressures struct{ CPU, Memory, IO *Pressure }

// Pressures reads the pressure stall information of the cgroup. For the root cgroup it is that of
// the machine. Version 1 has none.
func (m *Manager) Pressures(cgroup string) Pressures {
	if !m.Unified() {
		return Pressures{}
	}
	dir := m.Dir("", cgroup)
	return Pressures{CPU: readPressure(dir, "cpu.pressure"), Memory: readPressure(dir, "memory.pressure"), IO: readPressure(dir, "io.pressure")}
}

// readPressure reads a file with pressure stall information. It returns nil if the file does not exist or cannot be
// read or parsed.
func readPressure(dir, file string) *Pressure {
	// Reading fails if pressure stall information is disabled in the kernel.
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return nil
	}
	p, err := parsePressure(string(data))
	if err != nil {
		return nil
	}
	return p
}

// parsePressure parses lines of the form
//
//	some avg10=0.00 avg60=0.00 avg300=0.00 total=0
//
// where total is in microseconds. It ignores unknown fields.
func parsePressure(text string) (*Pressure, error) {
	p := &Pressure{}
	found := false
	scan := bufio.NewScanner(strings.NewReader(text))
	for scan.Scan() {
		fields := strings.Fields(scan.Text())
		if len(fields) == 0 {
			continue
		}
		var s *Stall
		switch fields[0] {
		case "some":
			s = &p.Some
		case "full":
			s = &p.Full
		default:
			continue
		}
		found = true
		for _, field := range fields[1:] {
			key, value, _ := strings.Cut(field, "=")
			if key == "total" {
				n, err := strconv.ParseInt(value, 10, 64)
				if err != nil || n < 0 || n > int64(1<<63-1)/int64(time.Microsecond) {
					return nil, fmt.Errorf("reading pressure: unexpected %q", field)
				}
				s.Total = time.Duration(n) * time.Microsecond
				continue
			}
			average := map[string]*float64{"avg10": &s.Avg10, "avg60": &s.Avg60, "avg300": &s.Avg300}[key]
			if average == nil {
				continue
			}
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return nil, fmt.Errorf("reading pressure: unexpected %q", field)
			}
			*average = n
		}
	}
	if err := scan.Err(); err != nil {
		return nil, fmt.Errorf("reading pressure: %w", err)
	}
	if !found {
		return nil, fmt.Errorf("reading pressure: unexpected %q", text)
	}
	return p, nil
}
