// Package certrenewal inspects and renews the certificates of a control plane node, under the names
// of kubeadm. It derives the subject, names and usages of a new certificate from the old one.
// Therefore it does not need the settings of the node, and certificates that kubeadm created are
// renewed in the same way.
//
// https://kubernetes.io/docs/tasks/administer-cluster/kubeadm/kubeadm-certs/
package certrenewal

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"hyperkube/internal/credentials/kubeconfig"
	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/host/atomicfile"
	"hyperkube/internal/host/layout"
)

// ControlPlane locates the certificates of a control plane node: the directories in which its keys, certificates and
// kubeconfigs are. Its methods list, inspect and renew the certificates.
type ControlPlane struct {
	// PKI is the directory of keys and certificates.
	PKI string
	// Etc is the directory of kubeconfigs. It is empty if there are none.
	Etc string
	// KubeconfigKeys is the directory with copies of the certificates in kubeconfigs, named like
	// the kubeconfigs without ".conf". It also holds other key pairs that the cluster CA signed. It
	// may be empty.
	KubeconfigKeys string
	// Additional contains further key pairs signed by the cluster CA: paths without extension by
	// certificate name. Pairs that do not exist or that another CA signed are ignored.
	Additional map[string]string
}

// Authority is a certificate authority (CA) of a control plane node, identified by its name and the path of its files.
type Authority struct {
	Name string
	// base is the path of its files without extension.
	base string
}

// Certificate is a certificate of a control plane node: its name, its CA, and the files or the kubeconfig that contain
// it.
type Certificate struct {
	Name string
	// Authority is the certificate authority that signs the certificate.
	Authority Authority
	// Either base or conf is set. base is the path of the certificate files without extension; conf
	// is the path of the kubeconfig that contains the certificate.
	base, conf string
	// optional means that the certificate may be missing.
	optional bool
}

// State is the content of a certificate, or of an authority, as Inspect has read it from disk. For an authority, the
// embedded Certificate contains only the name.
type State struct {
	Certificate
	// Cert is nil if the certificate is missing.
	Cert *x509.Certificate
	// External means that the CA key needed for renewal is not on this machine.
	External bool
}

// ErrExternal is the error of Renew for a certificate whose CA key is not on this machine. An administrator must renew
// it with the external CA.
var ErrExternal = errors.New("the CA key is not on this machine (externally managed certificate)")

// Names of the certificate authorities of a control plane node. Their files are below ControlPlane.PKI.
const (
	caName         = "ca"
	etcdCAName     = "etcd-ca"
	frontProxyName = "front-proxy-ca"
)

// Authorities returns all certificate authorities of a control plane node.
func (m ControlPlane) Authorities() []Authority {
	return []Authority{
		{caName, filepath.Join(m.PKI, "ca")},
		{etcdCAName, filepath.Join(m.PKI, "etcd", "ca")},
		{frontProxyName, filepath.Join(m.PKI, "front-proxy-ca")},
	}
}

// Certificates returns all certificates that a control plane node should have, sorted by name.
func (m ControlPlane) Certificates() []Certificate {
	authorities := map[string]Authority{}
	for _, a := range m.Authorities() {
		authorities[a.Name] = a
	}
	var all []Certificate
	for _, c := range []struct{ name, ca, file string }{
		{"apiserver", caName, "apiserver"},
		{"apiserver-etcd-client", etcdCAName, "apiserver-etcd-client"},
		{"apiserver-kubelet-client", caName, "apiserver-kubelet-client"},
		{"etcd-healthcheck-client", etcdCAName, "etcd/healthcheck-client"},
		{"etcd-peer", etcdCAName, "etcd/peer"},
		{"etcd-server", etcdCAName, "etcd/server"},
		{"front-proxy-client", frontProxyName, "front-proxy-client"},
	} {
		all = append(all, Certificate{Name: c.name, Authority: authorities[c.ca], base: filepath.Join(m.PKI, c.file)})
	}
	for name, base := range m.Additional {
		all = append(all, Certificate{Name: name, Authority: authorities[caName], base: base, optional: true})
	}
	if m.Etc != "" {
		for _, name := range []string{"admin.conf", "controller-manager.conf", "scheduler.conf", "super-admin.conf"} {
			all = append(all, Certificate{
				Name: name, Authority: authorities[caName], conf: filepath.Join(m.Etc, name),
				optional: name == "super-admin.conf", // only on the node of init
			})
		}
	}
	slices.SortFunc(all, func(a, b Certificate) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return all
}

// Inspect reads the certificates and authorities and returns their states. Missing optional certificates, and optional
// key pairs that another CA signed, are left out. It returns an error if a file is invalid.
func (m ControlPlane) Inspect() (certificates, authorities []State, err error) {
	signers := map[string]State{}
	for _, a := range m.Authorities() {
		s := State{Certificate: Certificate{Name: a.Name}, External: !layout.Exists(a.base + ".key")}
		if s.Cert, err = readCert(a.base + ".crt"); err != nil {
			return nil, nil, err
		}
		signers[a.Name] = s
		authorities = append(authorities, s)
	}
	for _, c := range m.Certificates() {
		signer := signers[c.Authority.Name]
		s := State{Certificate: c, External: signer.External}
		data, err := c.read()
		if err == nil {
			s.Cert, err = pki.ParseCertificate(data)
		}
		switch {
		case errors.Is(err, os.ErrNotExist) && c.optional:
			continue
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			return nil, nil, fmt.Errorf("%s: %w", c.Name, err)
		case c.optional && c.conf == "" && (signer.Cert == nil || s.Cert.CheckSignatureFrom(signer.Cert) != nil):
			continue // signed by another CA, which renews it
		}
		certificates = append(certificates, s)
	}
	return certificates, authorities, nil
}

// Renew replaces a certificate with a new one that has a new key and the same names and usages. Each file is replaced
// atomically, one after the other. It returns ErrExternal if the CA key is not on this machine.
func (m ControlPlane) Renew(c Certificate) (*pki.Pair, error) {
	unlock, err := pki.Lock(m.PKI)
	if err != nil {
		return nil, err
	}
	defer unlock()
	ca, err := pki.LoadCA(c.Authority.base)
	if err != nil {
		return nil, err
	}
	if ca.Key == nil {
		return nil, fmt.Errorf("%s: %w", c.Name, ErrExternal)
	}
	if c.conf == "" {
		return ca.RenewPair(c.base)
	}
	data, err := c.read()
	if err != nil {
		return nil, err
	}
	old, err := pki.ParseCertificate(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	pair, err := ca.NewPair(pki.SpecOf(old))
	if err != nil {
		return nil, err
	}
	if err := m.replaceCopy(c, pair); err != nil {
		return nil, err
	}
	if _, err := (kubeconfig.Target{Path: c.conf}).ReplaceCertificate(data, pair.CertPEM, pair.KeyPEM); err != nil {
		return nil, err
	}
	return pair, nil
}

// replaceCopy replaces the stored copy of a kubeconfig's certificate, if there is one. Otherwise the
// kubeconfig would be rewritten with the old certificate later.
func (m ControlPlane) replaceCopy(c Certificate, pair *pki.Pair) error {
	base := filepath.Join(m.KubeconfigKeys, c.Name[:len(c.Name)-len(".conf")])
	if m.KubeconfigKeys == "" || !layout.Exists(base+".crt") {
		return nil
	}
	err := atomicfile.Write(
		atomicfile.File{Path: base + ".key", Data: pair.KeyPEM, Mode: 0o600},
		atomicfile.File{Path: base + ".crt", Data: pair.CertPEM, Mode: 0o644})
	if err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	return nil
}

// read returns the certificate in PEM, from its kubeconfig or its file. The error wraps os.ErrNotExist if it is
// missing.
func (c Certificate) read() ([]byte, error) {
	if c.conf != "" {
		return kubeconfig.ClientCertificate(c.conf)
	}
	return os.ReadFile(c.base + ".crt")
}

// Read returns the current certificate in PEM. Errors contain the name of the certificate and wrap os.ErrNotExist if
// it is missing.
func (c Certificate) Read() ([]byte, error) {
	data, err := c.read()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	return data, nil
}

// readCert reads a certificate. It returns nil if the file does not exist.
func readCert(path string) (*x509.Certificate, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading certificate: %w", err)
	}
	cert, err := pki.ParseCertificate(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return cert, nil
}
