package e2e

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/host/layout"
)

// TestUpgrade replaces a running build with another by `up`. Containers and the runtime process
// keep running.
func TestUpgrade(t *testing.T) {
	a := newAlone(t)
	root := filepath.Join(a.dir, "r")
	newer, version := a.anotherBuild()
	t.Cleanup(func() { _ = a.command(newer, "reset", "--root", root).Run() })
	a.hyperkube("up", "--root", root)
	a.hyperkube("kubectl", "create", "deployment", "web", "--image=hyperkube", "--replicas=2", "--", "/hyperkube", "hello")
	a.hyperkube("kubectl", "rollout", "status", "deployment/web", "--timeout=180s")
	const who = `jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[*].containerID} {.status.containerStatuses[*].restartCount}{"\n"}{end}`
	before := a.hyperkube("kubectl", "get", "pods", "-l", "app=web", "-o", who)
	runtime := a.runtime(root)

	a.binary = newer
	aged := a.age(root)
	if out := a.hyperkube("up", "--root", root); !strings.Contains(out, "of another build with this build, "+version) || !strings.Contains(out, version+" is up") {
		t.Errorf("up of another build printed\n%s", out)
	}
	// The Node's status from the previous build may remain for a moment.
	a.hyperkube("kubectl", "wait", "nodes", "--all", "--timeout=180s", "--for=jsonpath={.status.nodeInfo.kubeletVersion}="+version)
	if after := a.hyperkube("kubectl", "get", "pods", "-l", "app=web", "-o", who); after != before {
		t.Errorf("pods were\n%s\nand are\n%s", before, after)
	}
	if now := a.runtime(root); now != runtime {
		t.Errorf("the runtime was process %d and is %d", runtime, now)
	}
	line, err := os.ReadFile("/proc/" + strconv.Itoa(runtime) + "/cmdline")
	if want := strings.ReplaceAll(version, "+", "-"); err != nil || !bytes.Contains(line, []byte(want)) {
		t.Errorf("the runtime is not of version %s: %q, %v", want, line, err)
	}
	// The new build works with the existing state, and another up does not replace it.
	a.hyperkube("kubectl", "scale", "deployment/web", "--replicas=3")
	a.hyperkube("kubectl", "rollout", "status", "deployment/web", "--timeout=180s")
	if out := a.hyperkube("up", "--root", root); !strings.Contains(out, "already running") {
		t.Errorf("repeated up printed\n%s", out)
	}
	// The certificate that is close to its expiration is renewed at run time.
	deadline := time.Now().Add(2 * time.Minute)
	for {
		var shown *x509.Certificate
		a.onThread(func() error {
			conn, err := tls.Dial("tcp", "127.0.0.1:6443", &tls.Config{InsecureSkipVerify: true})
			if err == nil {
				shown = conn.ConnectionState().PeerCertificates[0]
				conn.Close()
			}
			return err
		})
		if shown == nil || time.Until(shown.NotAfter) > 24*time.Hour {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the certificate that expires at %s was not renewed", aged)
		}
		time.Sleep(100 * time.Millisecond) // there is no event
	}
	a.hyperkube("kubectl", "get", "nodes")
}

// age replaces the API server's certificate with one by the same authority and for the same key
// that must be renewed soon. It returns when the new one expires.
func (a *alone) age(root string) time.Time {
	a.t.Helper()
	set, err := pki.Load(layout.Under(root).PKI())
	if err != nil {
		a.t.Fatal(err)
	}
	template := *set.APIServer.Cert
	// The last third of its lifetime starts in six seconds. It is valid for another hour, so that
	// it does not expire before a late renewal.
	begun := time.Now().Add(6 * time.Second)
	template.NotBefore, template.NotAfter = begun.Add(-2*time.Hour), begun.Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, &template, set.CA.Cert, set.APIServer.Key.Public(), set.CA.Key)
	if err != nil {
		a.t.Fatal(err)
	}
	if err := os.WriteFile(set.APIServer.CertFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return template.NotAfter
}

// anotherBuild returns a copy of the program with another version in the binary.
func (a *alone) anotherBuild() (path, version string) {
	a.t.Helper()
	var info struct{ GitVersion string }
	if err := json.Unmarshal([]byte(a.hyperkube("version", "-o", "json")), &info); err != nil {
		a.t.Fatal(err)
	}
	program, err := os.ReadFile(a.binary)
	if err != nil {
		a.t.Fatal(err)
	}
	old := info.GitVersion
	last := byte('9')
	if strings.HasSuffix(old, "9") {
		last = '8'
	}
	version = old[:len(old)-1] + string(last)
	program = bytes.ReplaceAll(program, []byte(old), []byte(version))
	path = filepath.Join(a.dir, "hyperkube")
	if err := os.WriteFile(path, program, 0o755); err != nil {
		a.t.Fatal(err)
	}
	return path, version
}

// runtime returns the PID of the container runtime.
func (a *alone) runtime(root string) int {
	a.t.Helper()
	var state struct{ RuntimePID int }
	if err := json.Unmarshal([]byte(a.hyperkube("status", "--root", root, "-o", "json")), &state); err != nil {
		a.t.Fatal(err)
	}
	return state.RuntimePID
}
