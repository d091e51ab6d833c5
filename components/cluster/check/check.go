// Package check finds out why a cluster on this machine does not work, or would not work: the command `hyperkube check`.
// It works with and without a running cluster, and changes nothing that remains.
//
// A check is a name and a function. The function reads a [Machine], which contains all that the checks inspect, and
// reports findings to an outcome. So most checks are tested with a machine that exists only in memory. There is a file
// for each area; [Host] returns the Machine that describes this machine.
package check

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// Severity is how bad a finding is.
type Severity string

const (
	// Error is a finding that prevents the start of a cluster, or because of which a part of the running cluster does
	// not work.
	Error Severity = "error"
	// Warning is a finding that is likely to cause an error, or that restricts what pods can do.
	Warning Severity = "warning"
)

// Finding is one thing that is wrong with the machine or its cluster.
type Finding struct {
	// Check is the name of the check that has found it.
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	// Cause describes what is wrong, and what does not work because of it, in one sentence.
	Cause string `json:"cause"`
	// Fix describes what the operator must do, with the commands in backquotes.
	Fix string `json:"fix"`
}

// Skipped is a check that did not apply.
type Skipped struct {
	Check  string `json:"check"`
	Reason string `json:"reason"`
}

// Report is the result of all checks.
type Report struct {
	Errors   int       `json:"errors"`
	Warnings int       `json:"warnings"`
	Findings []Finding `json:"findings"`
	// Passed are the names of checks without findings.
	Passed  []string  `json:"passed"`
	Skipped []Skipped `json:"skipped"`
}

// check is a check: its name and the function that reports what it finds. The functions of all checks run concurrently
// and read the same Machine.
type check struct {
	name string
	run  func(ctx context.Context, m *Machine, o *outcome)
}

// outcome collects what one check finds. Its methods must not be called concurrently.
type outcome struct {
	findings []Finding
	// reason is why the check did not apply; "" if it did.
	reason string
}

// errorf reports an error. fix is the Fix of the finding, the other arguments its Cause.
func (o *outcome) errorf(fix, format string, args ...any) { o.add(Error, fix, format, args) }

// warnf reports a warning. fix is the Fix of the finding, the other arguments its Cause.
func (o *outcome) warnf(fix, format string, args ...any) { o.add(Warning, fix, format, args) }

func (o *outcome) add(severity Severity, fix, format string, args []any) {
	o.findings = append(o.findings, Finding{Severity: severity, Cause: fmt.Sprintf(format, args...), Fix: fix})
}

// skip reports that the check does not apply, and why.
func (o *outcome) skip(reason string) { o.reason = reason }

// all returns all checks in the order of the report.
func all() []check {
	return slices.Concat(requirementChecks(), kernelChecks(), cgroupChecks(), parameterChecks(), diskChecks(), clockChecks(),
		networkChecks(), dnsChecks(), otherClusterChecks(), certificateChecks(), etcdChecks(), apiChecks(), firewallChecks(), imageChecks(), leakChecks())
}

// timeout limits the duration of all checks together. A check that takes longer is reported as a warning.
const timeout = 4500 * time.Millisecond

// Run runs all checks of m concurrently and returns what they have found, errors first. A check that has not returned
// when ctx is done continues in the background, so the process should exit soon.
func Run(ctx context.Context, m *Machine) *Report { return run(ctx, m, all()) }

func run(ctx context.Context, m *Machine, checks []check) *Report {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	outcomes := make([]*outcome, len(checks))
	var group errgroup.Group
	for i, c := range checks {
		group.Go(func() error {
			done := make(chan *outcome, 1)
			go func() {
				o := &outcome{}
				c.run(ctx, m, o)
				done <- o
			}()
			select {
			case outcomes[i] = <-done:
				return nil
			case <-ctx.Done():
			}
			// A check that respects ctx returns now.
			grace := time.NewTimer(timeout / 20)
			defer grace.Stop()
			select {
			case outcomes[i] = <-done:
			case <-grace.C:
				late := &outcome{}
				late.warnf("repeat the command when the machine is less busy; if that does not help, look for a disk that does not respond with `dmesg`", "the check did not complete within %s", timeout)
				outcomes[i] = late
			}
			return nil
		})
	}
	_ = group.Wait() // the functions return no error
	for _, o := range outcomes {
		o.reason = m.adapt(o.reason)
		for i := range o.findings {
			o.findings[i].Fix = m.adapt(o.findings[i].Fix)
		}
	}
	return newReport(checks, outcomes)
}

// newReport returns the report of checks, whose outcomes are at the same indexes.
func newReport(checks []check, outcomes []*outcome) *Report {
	r := &Report{Findings: []Finding{}, Passed: []string{}, Skipped: []Skipped{}}
	for i, c := range checks {
		o := outcomes[i]
		for _, f := range o.findings {
			f.Check = c.name
			r.Findings = append(r.Findings, f)
			if f.Severity == Error {
				r.Errors++
			} else {
				r.Warnings++
			}
		}
		switch {
		case len(o.findings) > 0:
		case o.reason != "":
			r.Skipped = append(r.Skipped, Skipped{c.name, o.reason})
		default:
			r.Passed = append(r.Passed, c.name)
		}
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return strings.Compare(string(a.Severity), string(b.Severity)) })
	return r
}
