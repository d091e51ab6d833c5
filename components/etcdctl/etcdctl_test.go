package etcdctl

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"hyperkube/internal/testing/leakcheck"
	"hyperkube/internal/testing/testetcd"
)

// asCommand is the environment variable that makes the test binary act as etcdctl.
const asCommand = "HYPERKUBE_TEST_AS_ETCDCTL"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) == "" {
		leakcheck.Main(m)
	}
	if NewCommand().Execute() != nil {
		os.Exit(1)
	}
}

// TestCommands runs commands against a member. A command that looks up an undefined flag would exit
// the process.
func TestCommands(t *testing.T) {
	m := testetcd.Start(t, testetcd.Config{Dir: t.TempDir()})
	t.Cleanup(m.Stop)
	file := filepath.Join(t.TempDir(), "snapshot")
	for _, tc := range []struct{ args, want string }{
		{"member list", "started, default,"},
		{"member list -w table", "│ started │ default │"},
		{"endpoint health", "is healthy"},
		{"endpoint status", "true, false"},
		{"put key value", "OK"},
		{"get k --prefix --keys-only", "key"},
		{"get key --hex", `\x76\x61\x6c\x75\x65`},
		{"lease list", "found 0 leases"},
		{"del key", "1"},
		{"defrag", "Finished defragmenting etcd member"},
		{"alarm list", ""},
		{"snapshot save " + file, "Snapshot saved at " + file},
	} {
		if out := printed(t, append(strings.Fields(tc.args), "--endpoints="+m.Address())); !strings.Contains(out, tc.want) {
			t.Errorf("etcdctl %s says %q, want %q", tc.args, out, tc.want)
		}
	}
	if got, err := m.Client.Get(t.Context(), "key"); err != nil || got.Count != 0 || got.Header.Revision != 3 {
		t.Errorf("a key that was put and deleted: %v, %v", got, err)
	}
}

// printed runs the command in a separate process, because etcd's commands do not close their client,
// and returns what it prints to standard output.
func printed(t *testing.T, args []string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
