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

// Stall is how long somebody waited for a resource.
type Stall struct {
	// Total since the cgroup was made.
	Total time.Duration
	// Avg10, Avg60 and Avg300 are percentages of the last 10, 60 and 300 seconds.
	Avg10, Avg60, Avg300 float64
}

// Pressure is how much is waited for a resource.
//
// https://docs.kernel.org/accounting/psi.html
type Pressure struct {
	// Some is time in which some processes waited, Full in which all did.
	Some, Full Stall
}

// Pressures are those of a cgroup and all below it; nil where the kernel does not
// tell.
type Pressures struct{ CPU, Memory, IO *Pressure }

// Pressures reads them. Cgroups of version 1 tell of none; the root's are the
// machine's.
func (m *Manager) Pressures(cgroup string) Pressures {
	if !m.Unified() {
		return Pressures{}
	}
	dir := m.Dir("", cgroup)
	return Pressures{CPU: readPressure(dir, "cpu.pressure"), Memory: readPressure(dir, "memory.pressure"), IO: readPressure(dir, "io.pressure")}
}

func readPressure(dir, file string) *Pressure {
	// It cannot be read where the kernel was told not to measure it.
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

// parsePressure reads lines of the form
//
//	some avg10=0.00 avg60=0.00 avg300=0.00 total=0
//
// with the total in microseconds. What it does not know it passes over.
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
