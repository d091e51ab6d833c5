package controlplane

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/components/cluster/command"
	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/host/layout"
)

// TestKubeconfigUser: the kubeconfig of an additional user contains a certificate that the cluster
// CA signed.
func TestKubeconfigUser(t *testing.T) {
	m := newTestNode(t)
	m.settings.ClusterName = "mine"
	if err := m.prepare(); err != nil {
		t.Fatal(err)
	}
	o := kubeconfigUser{name: "jane", groups: []string{"dev", "ops"}, validity: 2 * time.Hour}
	print := func() []byte {
		t.Helper()
		var out bytes.Buffer
		if err := o.print(&out, m.layout); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	text := print()
	file, err := clientcmd.Load(text)
	if err != nil {
		t.Fatal(err)
	}
	if file.CurrentContext != "jane@mine" || len(file.Contexts) != 1 || file.Clusters["mine"] == nil || file.Clusters["mine"].DisableCompression {
		t.Errorf("kubeconfig:\n%s", text)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != "https://192.0.2.1:6443" || !bytes.Equal(config.CAData, m.pki.CA.CertPEM) {
		t.Errorf("server %s, CA\n%s", config.Host, config.CAData)
	}
	cert, err := pki.ParseCertificate(config.CertData)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: m.pki.CA.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	if s := cert.Subject; s.CommonName != "jane" || !slices.Equal(s.Organization, []string{"dev", "ops"}) || time.Until(cert.NotAfter) > 2*time.Hour {
		t.Errorf("certificate: subject %s, not after %s", s, cert.NotAfter)
	}
	o.token = "secret"
	if config, err := clientcmd.RESTConfigFromKubeConfig(print()); err != nil || config.BearerToken != "secret" || config.CertData != nil {
		t.Errorf("with a token: %v, %v", config, err)
	}
	o.config = filepath.Join(t.TempDir(), "init.yaml")
	if err := os.WriteFile(o.config, []byte(kubeadmFile), 0o600); err != nil {
		t.Fatal(err)
	}
	if config, err := clientcmd.RESTConfigFromKubeConfig(print()); err != nil || config.Host != "https://k8s.example.com:7443" {
		t.Errorf("with a configuration file: %v, %v", config, err)
	}
	for _, o := range []kubeconfigUser{{validity: time.Hour}, {name: "jane"}, {name: "jane", validity: time.Hour, config: "/nowhere"}} {
		if err := o.print(&bytes.Buffer{}, m.layout); command.ExitCode(err) != command.ExitConfig {
			t.Errorf("%+v: %v", o, err)
		}
	}
	err = (&kubeconfigUser{name: "jane", validity: time.Hour}).print(&bytes.Buffer{}, layout.Under(t.TempDir()))
	if command.ExitCode(err) != command.ExitPreflight {
		t.Errorf("without a cluster: %v", err)
	}
}

// TestConfigImages: `config images list` prints the only image, also as JSON, and `pull` pulls
// nothing.
func TestConfigImages(t *testing.T) {
	file := filepath.Join(t.TempDir(), "init.yaml")
	if err := os.WriteFile(file, []byte(kubeadmFile), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"list":                     "hyperkube:v",
		"list -o json":             `"kind": "Images"`,
		"list --config " + file:    "hyperkube:v",
		"pull":                     "nothing to pull",
		"list --config=/nowhere":   "",
		"pull --image-repository=": "",
	} {
		cmd := newConfigImages()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&bytes.Buffer{})
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.Execute(); (err == nil) != (want != "") || want != "" && !strings.Contains(out.String(), want) {
			t.Errorf("%s: %q, %v", args, out.String(), err)
		}
	}
}
