//go:build cgo

// Package initial is where this program becomes a container's first process:
// libcontainer runs it again, as `init`, for every container and every exec.
// It must then go no further than this package's own initialiser.
//
// It imports libcontainer and nothing else, for Go initialises packages as
// soon as their imports are, in the order of their paths: what the runtime
// itself needs comes later and costs containers nothing.
package initial

import (
	"os"

	"github.com/opencontainers/runc/libcontainer"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // its C constructor enters namespaces before Go starts
)

func init() { //nolint:gochecknoinits // before anything else of the program
	if len(os.Args) > 1 && os.Args[1] == "init" {
		if os.Getenv(SpareEnv) != "" {
			waitForUse()
		}
		libcontainer.Init()
	}
}
