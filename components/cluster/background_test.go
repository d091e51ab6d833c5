package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Why a process in the background has ended is the last error of its own run,
// not of one before.
func TestLastError(t *testing.T) {
	const before = "time=1 level=ERROR msg=\"of the run before\"\n"
	for name, c := range map[string]struct{ log, want string }{
		"nothing":     {"", ""},
		"no error":    {"time=1 level=INFO msg=fine\n", ""},
		"the last":    {"time=1 level=ERROR msg=first\ntime=2 level=ERROR msg=disk error=\"input/output error\"\ntime=3 level=INFO msg=end\n", "msg=disk error=\"input/output error\""},
		"a panic":     {"time=1 level=ERROR msg=first\npanic: oh\n\ngoroutine 1 [running]:\n level=ERROR \n", "panic: oh"},
		"after a lot": {strings.Repeat("time=1 level=INFO msg=x\n", 10000) + "time=2 level=ERROR msg=last", "msg=last"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(file, []byte(before+c.log), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := lastError(file, int64(len(before))); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	if got := lastError(filepath.Join(t.TempDir(), "none"), 0); got != "" {
		t.Errorf("of no log: %q", got)
	}
}
