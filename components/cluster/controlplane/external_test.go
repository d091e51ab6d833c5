package controlplane

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
	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/host/layout"
)

// signAll signs all requests below a directory like an external CA, and installs the certificates
// like an administrator.
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

// TestExternalCA: without the CA key, init lists all certificates that must be signed
// elsewhere. generate-csr writes their keys and requests, and init succeeds with the signed
// certificates.
func TestExternalCA(t *testing.T) {
	external, err := pki.Ensure(t.TempDir(), pki.Config{})
	if err != nil {
		t.Fatal(err)
	}
	made := newTestNode(t)
	m := &controlPlaneNode{layout: layout.Under(t.TempDir()), settings: made.settings, identity: made.identity, address: made.address, addresses: made.addresses}
	if err := os.MkdirAll(m.pkiDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.pkiDir(), "ca.crt"), external.CA.CertPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	err = m.prepare()
	if err == nil || command.ExitCode(err) != command.ExitPreflight {
		t.Fatalf("without certificates: %v", err)
	}
	for want, contains := range map[string]bool{
		"pki/apiserver.crt": true, "pki/apiserver-kubelet-client.crt": true, "/admin.conf": true, "/super-admin.conf": true,
		"/kubelet.conf": true, "/proxy.conf": true, "certs generate-csr": true, "etcd/server.crt": false, "front-proxy-client.crt": false,
	} {
		if strings.Contains(err.Error(), want) != contains {
			t.Errorf("without certificates: %v; contains %s: want %v", err, want, contains)
		}
	}
	var out bytes.Buffer
	if err := m.credentials().writeRequests(&out, m.pkiDir(), m.layout.Etc); err != nil {
		t.Fatal(err)
	}
	if err := m.credentials().writeRequests(&out, m.pkiDir(), m.layout.Etc); err == nil || !strings.Contains(err.Error(), "is not replaced") {
		t.Errorf("second run: %v", err)
	}
	if err := m.prepare(); err == nil || !strings.Contains(err.Error(), "pki/apiserver.crt") {
		t.Errorf("with keys only: %v", err)
	}
	signAll(t, external.CA, m.layout.Etc)
	if found := otherClusterFiles(m.layout); len(found) > 0 {
		t.Errorf("attributed to another cluster: %v", found)
	}
	for range 2 {
		if err := m.prepare(); err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.BuildConfigFromFlags("", m.kubeconfigPath("admin"))
		if err != nil {
			t.Fatal(err)
		}
		cert, err := pki.ParseCertificate(config.CertData)
		if err != nil || cert.CheckSignatureFrom(external.CA.Cert) != nil || cert.Subject.CommonName != "kubernetes-admin" || len(config.KeyData) == 0 {
			t.Errorf("subject of admin.conf: %v: %v", cert.Subject, err)
		}
		for _, name := range []string{"kubelet-client-current.pem", "../../hyperkube/proxy.conf"} {
			if _, err := os.Stat(filepath.Join(m.layout.Kubelet, "pki", name)); err != nil {
				t.Error(err)
			}
		}
		manifest, err := os.ReadFile(filepath.Join(m.layout.StaticPods(), "kube-controller-manager.yaml"))
		if err != nil || bytes.Contains(manifest, []byte("cluster-signing")) {
			t.Errorf("the controller manager has a signing key: %v\n%s", err, manifest)
		}
	}
	// The kubelet's first key may be missing, because the kubelet has a newer certificate.
	if err := os.Remove(m.credentials().storedPair("kubelet") + ".key"); err != nil {
		t.Fatal(err)
	}
	if err := m.prepare(); err != nil {
		t.Errorf("without the kubelet's first key: %v", err)
	}
	if layout.Exists(filepath.Join(m.pkiDir(), "ca.key")) {
		t.Error("the CA key exists")
	}
}

// otherClusterFiles returns the files that preflight attributes to another cluster.
func otherClusterFiles(l layout.Node) []string {
	var found []string
	_ = preflight.CheckIgnoring(l, nil, "", []string{"all"}, func(problem error) {
		if name := preflight.CheckName(problem); strings.HasPrefix(name, "FileAvailable") {
			found = append(found, name)
		}
	})
	slices.Sort(found)
	return found
}
