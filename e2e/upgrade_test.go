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

	"hyperkube/internal/layout"
	"hyperkube/internal/pki"
)

// TestUpgrade puts another build in the place of one that runs, with `up`: pods
// go on in their containers, the runtime in its process.
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
	if out := a.hyperkube("up", "--root", root); !strings.Contains(out, "makes way for this one, "+version) || !strings.Contains(out, version+" is up") {
		t.Errorf("up of another build said\n%s", out)
	}
	// What the one before told of the node may stand for a moment.
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
	// What the new one makes of what it found works on, and it is not replaced
	// by itself.
	a.hyperkube("kubectl", "scale", "deployment/web", "--replicas=3")
	a.hyperkube("kubectl", "rollout", "status", "deployment/web", "--timeout=180s")
	if out := a.hyperkube("up", "--root", root); !strings.Contains(out, "running already") {
		t.Errorf("up again said\n%s", out)
	}
	// The certificate that is near its end is renewed while all runs.
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
			t.Fatalf("a certificate that was good until %s is not renewed", aged)
		}
		time.Sleep(100 * time.Millisecond) // nobody tells
	}
	a.hyperkube("kubectl", "get", "nodes")
}

// age puts a certificate in the place of the API server's, by the same authority and for the same
// key, that is to be renewed in a moment, and returns when it ends.
func (a *alone) age(root string) time.Time {
	a.t.Helper()
	set, err := pki.Load(layout.Under(root).PKI())
	if err != nil {
		a.t.Fatal(err)
	}
	template := *set.APIServer.Cert
	// The last third of its life begins in six seconds. It lasts an hour, for nobody
	// may meet one that has ended, however late it is renewed.
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

// anotherBuild is the program with another version written into it.
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

// runtime is the process of the container runtime.
func (a *alone) runtime(root string) int {
	a.t.Helper()
	var state struct{ RuntimePID int }
	if err := json.Unmarshal([]byte(a.hyperkube("status", "--root", root, "-o", "json")), &state); err != nil {
		a.t.Fatal(err)
	}
	return state.RuntimePID
}
