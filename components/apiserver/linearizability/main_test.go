package linearizability

import (
	"flag"
	"os"
	"testing"
	"time"

	"hyperkube/internal/testing/testisolate"
)

var long = flag.Duration("long", 0, "how long each test causes random faults, instead of a few")

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		os.Exit(runChild(text))
	}
	testisolate.Main(m, testisolate.Mounts|testisolate.Network)
}

// until returns a function that reports whether another round is necessary, after n rounds: a single
// one unless the flag -long is set.
func until() func(n int) bool {
	end := time.Now().Add(*long)
	return func(n int) bool { return n == 0 || time.Now().Before(end) }
}
