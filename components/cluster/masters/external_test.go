package masters

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/preflight"
	"hyperkube/internal/layout"
	"hyperkube/internal/pki"
)

// signAll does what an authority elsewhere does with the requests below a folder, and what
// a person does with its answers.
func signAll(t *testing.T, ca *pki.CA, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		base, isRequest := strings.CutSuffix(path, ".csr")
		if err != nil || !isRequest {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		block, _ := pem.Decode(data)
		request, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			return err
		}
		cert, err := ca.Sign(request.PublicKey, pki.Spec{
			CommonName: request.Subject.CommonName, Organizations: request.Subject.Organization, DNSNames: request.DNSNames, IPs: request.IPAddresses,
			Client: true, Server: true,
		})
		if err != nil {
			return err
		}
		signed := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
		if !strings.HasSuffix(base, ".conf") {
			return os.WriteFile(base+".crt", signed, 0o600)
		}
		config, err := clientcmd.LoadFromFile(base)
		if err != nil {
			return err
		}
		for _, user := range config.AuthInfos {
			user.ClientCertificateData = signed
		}
		return clientcmd.WriteToFile(*config, base)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestExternalAuthority: without the key of the authority a machine is told all that must be
// signed elsewhere, makes keys and requests for it, and is a master by what comes back.
func TestExternalAuthority(t *testing.T) {
	elsewhere, err := pki.Ensure(t.TempDir(), pki.Config{})
	if err != nil {
		t.Fatal(err)
	}
	made := testMaster(t)
	m := &master{layout: layout.Under(t.TempDir()), settings: made.settings, identity: made.identity, address: made.address, addresses: made.addresses}
	if err := os.MkdirAll(m.pkiDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.pkiDir(), "ca.crt"), elsewhere.CA.CertPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	err = m.prepare()
	if err == nil || command.ExitCode(err) != command.ExitPreflight {
		t.Fatalf("with nothing signed: %v", err)
	}
	for want, there := range map[string]bool{
		"pki/apiserver.crt": true, "pki/apiserver-kubelet-client.crt": true, "/admin.conf": true, "/super-admin.conf": true,
		"/kubelet.conf": true, "/proxy.conf": true, "certs generate-csr": true, "etcd/server.crt": false, "front-proxy-client.crt": false,
	} {
		if strings.Contains(err.Error(), want) != there {
			t.Errorf("with nothing signed: %v; %s among it: want %v", err, want, there)
		}
	}
	var out bytes.Buffer
	if err := m.request(&out, m.pkiDir(), m.layout.Etc); err != nil {
		t.Fatal(err)
	}
	if err := m.request(&out, m.pkiDir(), m.layout.Etc); err == nil || !strings.Contains(err.Error(), "is not replaced") {
		t.Errorf("requests once more: %v", err)
	}
	if err := m.prepare(); err == nil || !strings.Contains(err.Error(), "pki/apiserver.crt") {
		t.Errorf("with keys alone: %v", err)
	}
	signAll(t, elsewhere.CA, m.layout.Etc)
	if found := otherFiles(m.layout); len(found) > 0 {
		t.Errorf("taken for another cluster's: %v", found)
	}
	for range 2 {
		if err := m.prepare(); err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.BuildConfigFromFlags("", m.conf("admin"))
		if err != nil {
			t.Fatal(err)
		}
		cert, err := pki.ParseCertificate(config.CertData)
		if err != nil || cert.CheckSignatureFrom(elsewhere.CA.Cert) != nil || cert.Subject.CommonName != "kubernetes-admin" || len(config.KeyData) == 0 {
			t.Errorf("admin.conf is of %v: %v", cert.Subject, err)
		}
		for _, name := range []string{"kubelet-client-current.pem", "../../hyperkube/proxy.conf"} {
			if _, err := os.Stat(filepath.Join(m.layout.Kubelet, "pki", name)); err != nil {
				t.Error(err)
			}
		}
		manifest, err := os.ReadFile(filepath.Join(m.layout.StaticPods(), "kube-controller-manager.yaml"))
		if err != nil || bytes.Contains(manifest, []byte("cluster-signing")) {
			t.Errorf("the controller manager signs: %v\n%s", err, manifest)
		}
	}
	// What the kubelet began with may be of no use any more: it has its own.
	if err := os.Remove(m.keptPair("kubelet") + ".key"); err != nil {
		t.Fatal(err)
	}
	if err := m.prepare(); err != nil {
		t.Errorf("without what the kubelet began with: %v", err)
	}
	if layout.Exists(filepath.Join(m.pkiDir(), "ca.key")) {
		t.Error("the authority has a key now")
	}
}

// otherFiles are those that are taken for another cluster's.
func otherFiles(l layout.Node) []string {
	var found []string
	_ = preflight.CheckBut(l, nil, []string{"all"}, func(problem error) {
		if name := preflight.Name(problem); strings.HasPrefix(name, "FileAvailable") {
			found = append(found, name)
		}
	})
	slices.Sort(found)
	return found
}
