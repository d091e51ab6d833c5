//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

var (
	wrkRequests = regexp.MustCompile(`(\d+) requests in ([\d.]+)(us|ms|s|m)`)
	wrkP99      = regexp.MustCompile(`99%\s+([\d.]+)(us|ms|s|m)`)
	wrkFailures = regexp.MustCompile(`Non-2xx or 3xx responses: \d+|Socket errors: .*`)
	h2loadDone  = regexp.MustCompile(`finished in ([\d.]+)(us|ms|s),`)
	h2loadTotal = regexp.MustCompile(`(\d+) succeeded, (\d+) failed, (\d+) errored`)
)

// parseWrk reads the output of wrk. It returns an error if a request has failed.
func parseWrk(output, _ string) (result, error) {
	if failed := wrkFailures.FindString(output); failed != "" {
		return result{}, errors.New(failed)
	}
	total, p99 := wrkRequests.FindStringSubmatch(output), wrkP99.FindStringSubmatch(output)
	if total == nil || p99 == nil {
		return result{}, fmt.Errorf("unexpected output of wrk: %s", output)
	}
	requests, err := strconv.Atoi(total[1])
	if err != nil {
		return result{}, err
	}
	elapsed, err := time.ParseDuration(total[2] + total[3])
	if err != nil {
		return result{}, err
	}
	latency, err := time.ParseDuration(p99[1] + p99[2])
	return result{requests: requests, elapsed: elapsed, p99: latency}, err
}

// parseH2load reads the output of h2load, and its log file, which has a line for each request: the start, the status
// and the duration in microseconds. It returns an error if a request has failed.
func parseH2load(output, log string) (result, error) {
	done, total := h2loadDone.FindStringSubmatch(output), h2loadTotal.FindStringSubmatch(output)
	if done == nil || total == nil || total[1] == "0" || total[2] != "0" || total[3] != "0" {
		return result{}, fmt.Errorf("unexpected output of h2load: %s", output)
	}
	requests, err := strconv.Atoi(total[1])
	if err != nil {
		return result{}, err
	}
	elapsed, err := time.ParseDuration(done[1] + done[2])
	if err != nil {
		return result{}, err
	}
	data, err := os.ReadFile(log)
	if err != nil {
		return result{}, err
	}
	var latencies []int
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[1] != "200" {
			continue
		}
		if us, err := strconv.Atoi(fields[2]); err == nil {
			latencies = append(latencies, us)
		}
	}
	if len(latencies) == 0 {
		return result{}, errors.New("h2load has logged no request")
	}
	slices.Sort(latencies)
	return result{requests: requests, elapsed: elapsed, p99: time.Duration(latencies[len(latencies)*99/100]) * time.Microsecond}, nil
}
