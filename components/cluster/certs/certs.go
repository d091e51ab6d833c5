// Package certs knows the certificates of a master, under kubeadm's names, tells when
// they end, and makes them anew from what they say themselves. So neither needs to
// know with which settings the master was made, and kubeadm's are renewed as ours.
//
// https://kubernetes.io/docs/tasks/administer-cluster/kubeadm/kubeadm-certs/
package certs

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"hyperkube/internal/atomicfile"
	"hyperkube/internal/kubeconfig"
	"hyperkube/internal/layout"
	"hyperkube/internal/pki"
)

// Master says where a master has its certificates.
type Master struct {
	// PKI is the folder of keys and certificates.
	PKI string
	// Etc is the folder of kubeconfigs; empty: there are none.
	Etc string
	// Keys is where copies of the certificates in kubeconfigs are, by the names of
	// those without ".conf", and further pairs that the first authority has signed.
	// It may be empty.
	Keys string
	// Further are such pairs: paths without extension by name. Those that are not
	// there, or that another has signed, are passed over.
	Further map[string]string
}

// Authority is who signs certificates.
type Authority struct {
	Name string
	// base is the path of its files without extension.
	base string
}

// Certificate is one of a master's.
type Certificate struct {
	Name string
	// Authority signs it.
	Authority Authority
	// Either base is the path of its files without extension, or conf the
	// kubeconfig that it is in.
	base, conf string
	// optional: it need not be there.
	optional bool
}

// State is what is found of a certificate, or of an authority, which has neither
// Certificate.Authority nor a path.
type State struct {
	Certificate
	// Cert is nil when it is missing.
	Cert *x509.Certificate
	// External: the key that would renew it is kept elsewhere.
	External bool
}

// ErrExternal says that the authority's key is kept elsewhere.
var ErrExternal = errors.New("the key of its authority is not on this machine")

// The names of authorities, and their files below Master.PKI.
const (
	caName         = "ca"
	etcdCAName     = "etcd-ca"
	frontProxyName = "front-proxy-ca"
)

// Authorities are all that a master has.
func (m Master) Authorities() []Authority {
	return []Authority{
		{caName, filepath.Join(m.PKI, "ca")},
		{etcdCAName, filepath.Join(m.PKI, "etcd", "ca")},
		{frontProxyName, filepath.Join(m.PKI, "front-proxy-ca")},
	}
}

// Certificates are all that a master should have, in the order of their names.
func (m Master) Certificates() []Certificate {
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
	for name, base := range m.Further {
		all = append(all, Certificate{Name: name, Authority: authorities[caName], base: base, optional: true})
	}
	if m.Etc != "" {
		for _, name := range []string{"admin.conf", "controller-manager.conf", "scheduler.conf", "super-admin.conf"} {
			all = append(all, Certificate{
				Name: name, Authority: authorities[caName], conf: filepath.Join(m.Etc, name),
				optional: name == "super-admin.conf", // the first master's alone
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

// Look tells what there is of the certificates.
func (m Master) Look() (certificates, authorities []State, err error) {
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
			continue // it is somebody else's to renew
		}
		certificates = append(certificates, s)
	}
	return certificates, authorities, nil
}

// Renew makes a certificate anew, with another key, for the same names and uses.
// What there is of files is replaced one by one, each whole.
func (m Master) Renew(c Certificate) (*pki.Pair, error) {
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
	if err := m.keepCopy(c, pair); err != nil {
		return nil, err
	}
	if _, err := (kubeconfig.Target{Path: c.conf}).ReplaceCertificate(data, pair.CertPEM, pair.KeyPEM); err != nil {
		return nil, err
	}
	return pair, nil
}

// keepCopy replaces the copy of a kubeconfig's certificate, if there is one, from
// which that would else be written as it was.
func (m Master) keepCopy(c Certificate, pair *pki.Pair) error {
	base := filepath.Join(m.Keys, c.Name[:len(c.Name)-len(".conf")])
	if m.Keys == "" || !layout.Exists(base+".crt") {
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

// read returns the certificate in PEM.
func (c Certificate) read() ([]byte, error) {
	if c.conf != "" {
		return kubeconfig.ClientCertificate(c.conf)
	}
	return os.ReadFile(c.base + ".crt")
}

// Read returns the certificate in PEM, as it is now.
func (c Certificate) Read() ([]byte, error) {
	data, err := c.read()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	return data, nil
}

// readCert reads a certificate; nil when there is none.
func readCert(path string) (*x509.Certificate, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading a certificate: %w", err)
	}
	cert, err := pki.ParseCertificate(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return cert, nil
}
