package up

import (
	"bytes"
	"encoding/base64"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/testing/testpki"
)

func TestRenewCertificates(t *testing.T) {
	c := &clusterRun{
		layout: layout.Under(t.TempDir()), cluster: clusterconfig.Cluster{NodeName: "n", ServiceCIDRs: []string{"10.96.0.0/16"}},
		addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, log: slog.New(slog.DiscardHandler),
	}
	var err error
	if c.pki, err = c.ensureCertificates(); err != nil {
		t.Fatal(err)
	}
	if err := c.ensureServingCertificate(); err != nil {
		t.Fatal(err)
	}
	if err := c.writeKubeconfigs(); err != nil {
		t.Fatal(err)
	}
	next, err := c.renewCertificates(t.Context(), nil)
	if left := time.Until(next); err != nil || left < 200*24*time.Hour || left > 300*24*time.Hour {
		t.Fatalf("next renewal in %s, %v", left, err)
	}
	serving, err := c.kubeletServing()
	if err != nil {
		t.Fatal(err)
	}
	admin, err := c.admin()
	if err != nil {
		t.Fatal(err)
	}
	aged := []*pki.Pair{c.pki.APIServer, c.pki.APIServerKubeletClient, serving, admin}
	for _, pair := range aged {
		testpki.ReplaceByExpiring(t, c.pki.CA, pair)
	}
	if _, err := c.renewCertificates(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for _, pair := range aged {
		data, err := os.ReadFile(pair.CertFile)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := pki.ParseCertificate(data)
		if err != nil || time.Until(cert.NotAfter) < 300*24*time.Hour || cert.Equal(pair.Cert) {
			t.Errorf("%s expires at %s, %v", filepath.Base(pair.CertFile), cert.NotAfter, err)
		}
	}
	if shown := c.servingCert.Load().Leaf; shown.Equal(serving.Cert) {
		t.Error("the kubelet serves the old certificate")
	}
	data, err := os.ReadFile(clusterconfig.AdminKubeconfig(c.layout))
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := c.admin()
	if err != nil || !bytes.Contains(data, []byte(base64.StdEncoding.EncodeToString(fresh.CertPEM))) {
		t.Errorf("the kubeconfig has another certificate: %v", err)
	}
	if _, err := os.Stat(c.pki.EtcdServer.CertFile); err != nil {
		t.Error(err)
	}
}
