//go:build cgo

// Package initial turns this program into a container's init process. libcontainer executes it with
// the argument `init` for every container and every exec. Execution must not proceed beyond this
// package's init function.
//
// It imports libcontainer only. Go initializes a package when its imports are initialized, in the
// order of import paths. So packages that only the runtime needs are initialized later and do not
// delay containers.
package initial

import (
	"os"

	"github.com/opencontainers/runc/libcontainer"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // its C constructor joins namespaces before Go starts
)

func init() { //nolint:gochecknoinits // must run before the rest of the program
	if len(os.Args) > 1 && os.Args[1] == "init" {
		var filter int
		var err error
		if os.Getenv(PrestartEnv) != "" {
			filter = waitForContainer()
		} else {
			filter, err = inheritedFilter()
		}
		if err == nil && filter >= 0 {
			err = useFilter(filter)
		}
		if err != nil {
			exitWithError(logPipe(), err)
		}
		libcontainer.Init()
	}
}
