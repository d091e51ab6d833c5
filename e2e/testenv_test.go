package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"hyperkube/internal/credentials/pki"
)

// TestTestEnvironment starts etcd and an API server like envtest: through symlinks in one
// directory, with few flags, after searching the output of --help for other flags, and with a
// certificate in --cert-dir, or none.
func TestTestEnvironment(t *testing.T) {
	t.Parallel()
	a := newAlone(t)
	set, err := pki.Ensure(filepath.Join(a.dir, "pki"), pki.Config{})
	if err != nil {
		t.Fatal(err)
	}
	program := func(name string) string { return filepath.Join(a.dir, name) }
	for _, name := range []string{"etcd", "kube-apiserver", "kubectl"} {
		if err := os.Symlink(a.binary, program(name)); err != nil {
			t.Fatal(err)
		}
	}
	help := func(name string) string {
		out, err := exec.CommandContext(a.ctx, program(name), "--help").CombinedOutput()
		if err != nil {
			t.Fatalf("%s --help: %v\n%s", name, err, out)
		}
		return string(out)
	}
	if !strings.Contains(help("etcd"), "unsafe-no-fsync") || strings.Contains(help("kube-apiserver"), "insecure-port") {
		t.Error("the flags of etcd, or of the API server, are not those of their versions")
	}
	start := func(name string, args ...string) (stop func()) {
		t.Helper()
		log, err := os.Create(program(name) + ".log")
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		cmd := a.command(program(name), args...)
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return func() {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait()
			if t.Failed() {
				said, _ := os.ReadFile(log.Name())
				t.Logf("%s printed:\n%s", name, said)
			}
		}
	}
	defer start("etcd", "--advertise-client-urls=http://127.0.0.1:3379", "--listen-client-urls=http://127.0.0.1:3379",
		"--listen-peer-urls=http://localhost:0", "--unsafe-no-fsync=true", "--data-dir="+filepath.Join(a.dir, "etcd.data"))()

	admin, err := set.CA.EnsurePair(filepath.Join(a.dir, "admin"), pki.Client("admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	// One gives the server a certificate, the other lets it make one.
	given := filepath.Join(a.dir, "given")
	if err := os.Mkdir(given, 0o755); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{set.APIServer.CertFile: "apiserver.crt", set.APIServer.KeyFile: "apiserver.key"} {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(given, to), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	made := filepath.Join(a.dir, "made")
	for dir, authority := range map[string]string{given: set.CA.CertFile, made: filepath.Join(made, "apiserver.crt")} {
		stop := start("kube-apiserver", "--allow-privileged=true", "--authorization-mode=RBAC", "--bind-address=127.0.0.1",
			"--cert-dir="+dir, "--client-ca-file="+set.CA.CertFile, "--disable-admission-plugins=ServiceAccount",
			"--etcd-servers=http://127.0.0.1:3379", "--secure-port=6444", "--service-account-issuer=https://127.0.0.1:6444/",
			"--service-account-key-file="+set.ServiceAccountPubFile, "--service-account-signing-key-file="+set.ServiceAccountKeyFile,
			"--service-cluster-ip-range=10.0.0.0/24")
		user := []string{
			"--server=https://127.0.0.1:6444", "--certificate-authority=" + authority,
			"--client-certificate=" + admin.CertFile, "--client-key=" + admin.KeyFile,
		}
		kubectl := func(args ...string) error {
			out, err := a.command(program("kubectl"), append(user, args...)...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
			}
			return nil
		}
		a.eventually(time.Minute, func() error { return kubectl("get", "--raw", "/readyz") })
		// There are no controllers, so there is neither a ServiceAccount nor a node.
		if err := kubectl("run", "pod-"+filepath.Base(dir), "--image=nowhere.invalid/image"); err != nil {
			t.Error(err)
		}
		stop()
	}
}
