// Package leakcheck fails the tests of a package if they leave goroutines, file descriptors, child
// processes, mounts, network links or cgroups behind. Call Main from TestMain, or testisolate.Main,
// which does the same in new namespaces:
//
//	func TestMain(m *testing.M) { leakcheck.Main(m) }
//
// Every package whose code or tests start goroutines or open such resources must do so. A test in
// this package scans the tree for packages that do not.
package leakcheck

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"go.uber.org/goleak"
)

// Many resources are released asynchronously, for example by a goroutine that is returning or by a
// killed process. The check is repeated for as long as timeout, at growing intervals.
const (
	timeout     = 10 * time.Second
	maxInterval = 100 * time.Millisecond
)

// libraryGoroutines lists functions of libraries that start a goroutine on first use and provide no
// way to stop it. Goroutines that are started while packages are initialized need no entry.
var libraryGoroutines = []string{
	"gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun", // removes old log files; Close does not stop it
}

// Option changes the leak check of a package. Pass it to Main.
type Option func(*config)

// config is what the options of Main have set: goroutines to ignore, and namespaces that no other process uses.
type config struct {
	goroutines []goleak.Option
	namespaces uintptr
}

// Ignore excludes goroutines that have the function on their stack. function is its name in stack
// traces, with the import path of its package. Only use it for goroutines that cannot be stopped,
// with the reason in a comment.
func Ignore(function string) Option {
	return func(c *config) { c.goroutines = append(c.goroutines, goleak.IgnoreAnyFunction(function)) }
}

// Namespaces declares that no other process uses the mount or network namespace of this process
// (syscall.CLONE_NEWNS, CLONE_NEWNET). Its new mounts or links are leaks then. They are not checked in
// shared namespaces, where other processes create some. testisolate.Main sets this option.
func Namespaces(flags uintptr) Option {
	return func(c *config) { c.namespaces |= flags }
}

// Main runs the tests of m, checks for leaks if they pass, and exits. The exit code is 1 if there
// are leaks, which are reported on standard error.
func Main(m *testing.M, options ...Option) { os.Exit(run(m, options)) }

// run runs the tests of m and returns the exit code of the test program, as Main describes.
func run(m interface{ Run() int }, options []Option) int {
	var c config
	for _, option := range options {
		option(&c)
	}
	for _, function := range libraryGoroutines {
		Ignore(function)(&c)
	}
	openProcessWide()
	before := c.resources()
	c.goroutines = append(c.goroutines, goleak.IgnoreCurrent())
	if code := m.Run(); code != 0 {
		return code
	}
	// Tests share the default transport, so that no test can close its idle connections.
	http.DefaultClient.CloseIdleConnections()
	leaks := c.wait(before)
	if len(leaks) == 0 {
		return 0
	}
	fmt.Fprintf(os.Stderr, "leakcheck: the tests passed, but these resources remain:\n%s\n", strings.Join(leaks, "\n"))
	return 1
}

// openProcessWide lets the Go runtime and libraries open the descriptors that they keep for the whole
// process, so that they are not counted as leaks.
func openProcessWide() {
	// The network poller of the runtime.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	// The handle of /proc of filepath-securejoin.
	if f, err := pathrs.OpenInRoot("/", "proc"); err == nil {
		f.Close()
	}
}

// wait waits until no resources exist that are not in before, at most for timeout, and returns the
// descriptions of those that remain.
func (c *config) wait(before map[string]string) []string {
	interval := time.Millisecond
	for end := time.Now().Add(timeout); ; time.Sleep(interval) {
		interval = min(2*interval, maxInterval)
		var leaks []string
		// The goroutines are first, because they own most of the other resources.
		if err := goleak.Find(c.goroutines...); err != nil {
			leaks = append(leaks, err.Error())
		}
		after := c.resources()
		for _, id := range slices.Sorted(maps.Keys(after)) {
			if _, exists := before[id]; !exists {
				leaks = append(leaks, after[id])
			}
		}
		if len(leaks) == 0 || time.Now().After(end) {
			return leaks
		}
	}
}

// resources returns a description of each resource that exists now, except goroutines, by a key
// that identifies the resource.
func (c *config) resources() map[string]string {
	found := map[string]string{}
	add := func(kind, id, description string) {
		found[kind+" "+id] = strings.TrimSpace(kind + " " + id + " " + description)
	}
	descriptors(add)
	children(add)
	if c.namespaces&syscall.CLONE_NEWNS != 0 {
		mounts(add)
	}
	if c.namespaces&syscall.CLONE_NEWNET != 0 {
		links(add)
	}
	cgroups(add)
	return found
}
