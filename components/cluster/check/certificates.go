package check

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"hyperkube/internal/credentials/pki"
)

// certificateChecks returns the checks of certificates and keys.
func certificateChecks() []check {
	return []check{{"certificates", checkCertificates}, {"key-permissions", checkKeys}}
}

// credentialFiles returns the paths of the files with certificates, keys and kubeconfigs of the cluster.
func credentialFiles(m *Machine) []string {
	var files []string
	for _, dir := range []string{m.Layout.PKI(), filepath.Join(m.Layout.Etc, "pki"), filepath.Join(m.Layout.Kubelet, "pki")} {
		_ = fs.WalkDir(m.Files, rel(dir), func(name string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				files = append(files, "/"+name)
			}
			return nil // a missing directory has no files
		})
	}
	for _, dir := range []string{m.Layout.Etc, m.Layout.Data} {
		for _, name := range m.names(dir) {
			if path.Ext(name) == ".conf" {
				files = append(files, path.Join(dir, name))
			}
		}
	}
	return files
}

// expiring is the fraction of a certificate's lifetime that is left when the automatic renewal must have failed: it
// renews a certificate when a third is left.
const expiring = 10

// checkCertificates checks that all certificates are valid now. It also warns of a certificate that should have been
// renewed already, because little of its lifetime is left.
func checkCertificates(_ context.Context, m *Machine, o *outcome) {
	if !m.Cluster.Exists {
		o.skip("the machine has no cluster")
		return
	}
	for _, file := range credentialFiles(m) {
		cert := certificateIn(m, file)
		if cert == nil {
			continue
		}
		fix := m.renewal(cert)
		left := cert.NotAfter.Sub(m.Now)
		day := cert.NotAfter.UTC().Format(time.DateOnly)
		switch {
		case m.Now.Before(cert.NotBefore):
			o.errorf(setClock, "the certificate in %s is not valid before %s, so connections with it fail", file, cert.NotBefore.UTC().Format(time.DateTime))
		case left <= 0:
			o.errorf(fix, "the certificate in %s has expired on %s, so connections with it fail", file, day)
		case left < cert.NotAfter.Sub(cert.NotBefore)/expiring:
			o.warnf(fix, "the certificate in %s expires on %s and was not renewed", file, day)
		}
	}
}

// renewal returns how to renew a certificate of this machine.
func (m *Machine) renewal(cert *x509.Certificate) string {
	switch {
	case cert.IsCA && m.Cluster.Joined:
		return "replace the certificate authority, see https://kubernetes.io/docs/tasks/tls/manual-rotation-of-ca-certificates/"
	case cert.IsCA:
		return "a certificate authority cannot be renewed: save your manifests, then create a new cluster with `hyperkube reset` and `hyperkube up`"
	case m.Cluster.ControlPlane:
		return "run `hyperkube certs renew all`"
	case m.Cluster.Joined:
		return "join again: `hyperkube reset`, then the command that `hyperkube token create --print-join-command` prints on a control plane node"
	}
	return "restart the cluster, which renews certificates: `hyperkube stop`, then `" + m.Cluster.Start + "`"
}

// certificateIn returns the certificate in a file or kubeconfig; nil if there is none or it cannot be parsed.
func certificateIn(m *Machine, file string) *x509.Certificate {
	data := []byte(m.read(file))
	switch path.Ext(file) {
	case ".crt", ".pem":
	case ".conf":
		data = clientCertificate(data)
	default:
		return nil
	}
	cert, err := pki.ParseCertificate(data)
	if err != nil {
		return nil
	}
	return cert
}

// clientCertificate returns the client certificate of the first user in a kubeconfig; nil if the kubeconfig contains
// none.
func clientCertificate(kubeconfig []byte) []byte {
	var config struct {
		Users []struct {
			User struct {
				Data string `json:"client-certificate-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if yaml.Unmarshal(kubeconfig, &config) != nil || len(config.Users) == 0 {
		return nil
	}
	data, err := base64.StdEncoding.DecodeString(config.Users[0].User.Data)
	if err != nil {
		return nil
	}
	return data
}

// checkKeys checks that only root can read private keys and kubeconfigs.
func checkKeys(_ context.Context, m *Machine, o *outcome) {
	if !m.Cluster.Exists {
		o.skip("the machine has no cluster")
		return
	}
	var open []string
	for _, file := range credentialFiles(m) {
		info, err := fs.Stat(m.Files, rel(file))
		isKey := slices.Contains([]string{".key", ".conf"}, path.Ext(file)) || strings.Contains(m.read(file), "PRIVATE KEY-----")
		if err == nil && isKey && info.Mode().Perm()&0o077 != 0 {
			open = append(open, file)
		}
	}
	if len(open) > 0 {
		o.errorf("run `chmod 600 "+strings.Join(open, " ")+"`", "users other than root can read the private keys in %s, and with them act as components or administrators of the cluster", strings.Join(open, ", "))
	}
}
