package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// findings runs the command check and returns the names of the checks that have found something, with ERROR or WARNING,
// and the exit code.
func (a *alone) findings(root string) (found []string, code int) {
	a.t.Helper()
	cmd := a.command(a.binary, "check", "-o", "json", "--root", root)
	out, _ := cmd.Output() // the exit code is compared
	var report struct {
		Findings []struct{ Check, Severity, Cause, Fix string }
	}
	if err := json.Unmarshal(out, &report); err != nil {
		a.t.Fatalf("check: %v: %s", err, out)
	}
	for _, f := range report.Findings {
		if f.Cause == "" || f.Fix == "" {
			a.t.Errorf("incomplete finding %+v", f)
		}
		if f.Check != "default-route" && f.Check != "etcd-disk" { // there is no route, and other tests use the disk
			found = append(found, f.Severity+" "+f.Check)
		}
	}
	return found, cmd.ProcessState.ExitCode()
}

// TestDiagnosis checks a running cluster that works, with a firewall and with a leaked link, and a stopped one. Then it
// writes a support bundle, which must not contain credentials.
func TestDiagnosis(t *testing.T) {
	t.Parallel()
	a := newAlone(t)
	root := filepath.Join(a.dir, "r")
	expect := func(when string, code int, want ...string) {
		t.Helper()
		got, gotCode := a.findings(root)
		if !slices.Equal(got, want) || gotCode != code {
			t.Errorf("%s: found %q, exit code %d; want %q, %d", when, got, gotCode, want, code)
		}
	}
	expect("before up", 1)
	var last struct {
		Step, State string
		Result      *struct{ Kubeconfig, Server, Node string }
	}
	lines := strings.Split(strings.TrimSpace(a.hyperkube("up", "-o", "json", "--root", root)), "\n")
	for _, line := range lines {
		last.Result = nil
		if err := json.Unmarshal([]byte(line), &last); err != nil {
			t.Errorf("up: %v: %s", err, line)
		}
	}
	if last.Step != "start" || last.State != "done" || last.Result == nil || last.Result.Server != "https://127.0.0.1:6443" {
		t.Errorf("last line of up: %s", lines[len(lines)-1])
	}
	expect("cluster that works", 1)

	a.sh("iptables -I INPUT 1 -i hk-br0 -p tcp --dport 6443 -j REJECT")
	expect("firewall", 2, "error firewall")
	a.sh("iptables -D INPUT -i hk-br0 -p tcp --dport 6443 -j REJECT")
	a.sh("ip link add hkvdeadbeef0123 type veth peer name peer")
	expect("leaked link", 1, "warning leaked-links")
	a.sh("ip link delete hkvdeadbeef0123")
	expect("repaired", 1)

	const inSecret, inEnv, inConfig = "S3cretOfTheTest", "EnvOfTheTest77", "ApiKeyOfTheTest99"
	a.kubectl("create", "secret", "generic", "db", "--from-literal=pw="+inSecret)
	a.kubectl("create", "configmap", "copy", "--from-literal=note="+inSecret, "--from-literal=apikey="+inConfig, "--from-literal=kept=plainvalue")
	a.kubectl("run", "web", "--image=hyperkube", "--env=DB_PASSWORD="+inEnv, "--", "hello")
	for _, state := range []string{"running", "stopped"} {
		bundle := filepath.Join(a.dir, state+".tar.gz")
		a.hyperkube("support-bundle", "--root", root, bundle)
		files := filepath.Join(a.dir, state)
		if out, err := exec.Command("sh", "-c", "mkdir "+files+" && tar xzf "+bundle+" -C "+files).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		read := func(name string) string {
			data, _ := os.ReadFile(filepath.Join(files, "support-bundle", name)) // "" if missing
			return string(data)
		}
		secrets := []string{inConfig, inEnv, "PRIVATE KEY-----"}
		if state == "running" { // afterwards, the values of Secrets are unknown
			secrets = append(secrets, inSecret)
			if text := read("objects/configmaps.yaml"); !strings.Contains(text, "plainvalue") {
				t.Errorf("objects: %s", text)
			}
			if read("profiles/kube-apiserver/heap.pprof") == "" || !strings.Contains(read("profiles/kube-apiserver/goroutines.txt"), "goroutine ") {
				t.Errorf("no profiles: %s", read("errors.txt"))
			}
			a.hyperkube("stop", "--root", root)
			expect("stopped", 1, "warning processes")
		} else if !strings.Contains(read("errors.txt"), "objects: ") {
			t.Errorf("errors without an API server: %s", read("errors.txt"))
		}
		if out, err := exec.Command("grep", append([]string{"-rlF", "-e", strings.Join(secrets, "\n")}, files)...).Output(); err == nil {
			t.Errorf("%s: files with credentials: %s", state, out)
		}
		if !strings.Contains(read("check.json"), `"findings"`) || !strings.Contains(read("logs"+filepath.Join(root, "var/lib/hyperkube/logs/hyperkube.log")), "level=") {
			t.Errorf("%s: incomplete bundle", state)
		}
	}
	a.hyperkube("reset", "--root", root)
	expect("after reset", 1)
}
