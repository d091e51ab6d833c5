// Package pki makes and keeps a cluster's keys and certificates, in files with
// kubeadm's names, so that a directory made by kubeadm works here and one made
// here works there. All keys are ECDSA P-256; keys of other kinds are read.
//
// Authorities and the key of service accounts are made once and never
// replaced. All other certificates are made again when they are missing, are
// not readable, do not belong to their key or authority, lack a name or an
// address they need, or have lived two thirds of their life. That is why only
// the former are synced to disk before they are used.
//
// https://kubernetes.io/docs/setup/best-practices/certificates/
package pki

import (
	"crypto"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"hyperkube/internal/atomicfile"
)

// Config says for what names and addresses certificates are made.
type Config struct {
	// NodeName is the name of this machine's node; may be empty.
	NodeName string
	// NodeAddresses are this machine's addresses at which the API server and
	// etcd are reached. Loopback is always added.
	NodeAddresses []net.IP
	// ServiceAddresses are those of the Service kubernetes.default, the
	// first of each service CIDR.
	ServiceAddresses []net.IP
	// ClusterDomain is cluster.local when empty.
	ClusterDomain string
	// ExtraNames are further DNS names and addresses of the API server, such
	// as that of a load balancer.
	ExtraNames []string
}

// Set is what a control plane needs. It is not changed after Ensure or Load
// returned it.
type Set struct {
	// Dir holds the files.
	Dir string

	CA           *CA
	FrontProxyCA *CA
	EtcdCA       *CA

	APIServer              *Pair
	APIServerKubeletClient *Pair
	FrontProxyClient       *Pair
	EtcdServer             *Pair
	EtcdPeer               *Pair
	EtcdHealthcheckClient  *Pair
	APIServerEtcdClient    *Pair

	// ServiceAccountKey signs service account tokens.
	ServiceAccountKey crypto.Signer
	// ServiceAccountKeyFile and ServiceAccountPubFile are sa.key and sa.pub.
	ServiceAccountKeyFile, ServiceAccountPubFile string
}

// authority is one CA with its file name and common name.
type authority struct {
	file, name string
	dst        **CA
}

func (s *Set) authorities() []authority {
	return []authority{
		{"ca", "kubernetes", &s.CA},
		{"front-proxy-ca", "front-proxy-ca", &s.FrontProxyCA},
		{"etcd/ca", "etcd-ca", &s.EtcdCA},
	}
}

// leaf is one certificate with its file name and signer.
type leaf struct {
	file string
	ca   *CA
	spec Spec
	dst  **Pair
}

// leaves must be called when the authorities are known.
func (s *Set) leaves(cfg Config) []leaf {
	local := []string{cfg.NodeName, "localhost", "127.0.0.1", "::1"}
	for _, ip := range cfg.NodeAddresses {
		local = append(local, ip.String())
	}
	domain := cfg.ClusterDomain
	if domain == "" {
		domain = "cluster.local"
	}
	api := append([]string{
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + domain,
	}, local...)
	for _, ip := range cfg.ServiceAddresses {
		api = append(api, ip.String())
	}
	api = append(api, cfg.ExtraNames...)

	etcdName := cfg.NodeName
	if etcdName == "" {
		etcdName = "etcd"
	}
	etcd := Server(etcdName, local...)
	// etcd's gateway calls the server with the server's own certificate, and
	// members call each other with one certificate for both roles.
	etcd.Client = true
	return []leaf{
		{"apiserver", s.CA, Server("kube-apiserver", api...), &s.APIServer},
		{"apiserver-kubelet-client", s.CA, Client("kube-apiserver-kubelet-client", "system:masters"), &s.APIServerKubeletClient},
		{"front-proxy-client", s.FrontProxyCA, Client("front-proxy-client"), &s.FrontProxyClient},
		{"etcd/server", s.EtcdCA, etcd, &s.EtcdServer},
		{"etcd/peer", s.EtcdCA, etcd, &s.EtcdPeer},
		{"etcd/healthcheck-client", s.EtcdCA, Client("kube-etcd-healthcheck-client"), &s.EtcdHealthcheckClient},
		{"apiserver-etcd-client", s.EtcdCA, Client("kube-apiserver-etcd-client"), &s.APIServerEtcdClient},
	}
}

// Pairs are all certificates of the set but those of its authorities.
func (s *Set) Pairs() []*Pair {
	return []*Pair{s.APIServer, s.APIServerKubeletClient, s.FrontProxyClient, s.EtcdServer, s.EtcdPeer, s.EtcdHealthcheckClient, s.APIServerEtcdClient}
}

// Ensure makes dir hold everything that cfg asks for and returns it. What is
// there and good is kept. Processes that do this at the same time wait for
// each other. What is missing and cannot be signed here is a MissingError, of all of it.
func Ensure(dir string, cfg Config) (*Set, error) {
	if err := os.MkdirAll(filepath.Join(dir, "etcd"), 0o755); err != nil {
		return nil, fmt.Errorf("making the directory of certificates: %w", err)
	}
	unlock, err := Lock(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()

	set := &Set{Dir: dir}
	var files []atomicfile.File
	for _, a := range set.authorities() {
		ca, fresh, err := ensureCA(filepath.Join(dir, a.file), a.name)
		if err != nil {
			return nil, err
		}
		*a.dst = ca
		files = append(files, fresh...)
	}
	fresh, err := set.ensureServiceAccountKey()
	if err != nil {
		return nil, err
	}
	files = append(files, fresh...)
	var missing []string
	for _, l := range set.leaves(cfg) {
		pair, fresh, err := l.ca.ensure(filepath.Join(dir, l.file), l.spec)
		if errors.Is(err, errNoKey) {
			missing = append(missing, filepath.Join(dir, l.file)+".crt")
			continue
		}
		if err != nil {
			return nil, err
		}
		*l.dst = pair
		files = append(files, fresh...)
	}
	if len(missing) > 0 {
		return nil, &MissingError{missing}
	}
	if err := atomicfile.Write(files...); err != nil {
		return nil, fmt.Errorf("keeping certificates: %w", err)
	}
	return set, nil
}

// Load reads what Ensure keeps in dir and changes nothing. All must be there,
// but the keys of the authorities may be absent.
func Load(dir string) (*Set, error) {
	set := &Set{Dir: dir}
	for _, a := range set.authorities() {
		ca, err := LoadCA(filepath.Join(dir, a.file))
		if err != nil {
			return nil, err
		}
		*a.dst = ca
	}
	for _, l := range set.leaves(Config{}) {
		base := filepath.Join(dir, l.file)
		pair, err := loadPair(base+".crt", base+".key")
		if err != nil {
			return nil, fmt.Errorf("reading certificates: %w", err)
		}
		*l.dst = pair
	}
	set.ServiceAccountKeyFile = filepath.Join(dir, "sa.key")
	set.ServiceAccountPubFile = filepath.Join(dir, "sa.pub")
	data, err := os.ReadFile(set.ServiceAccountKeyFile)
	if err != nil {
		return nil, fmt.Errorf("reading the key of service accounts: %w", err)
	}
	if set.ServiceAccountKey, err = parseKey(data); err != nil {
		return nil, fmt.Errorf("reading %s: %w", set.ServiceAccountKeyFile, err)
	}
	return set, nil
}

// LoadCA reads the authority in base.crt and base.key. Without the key file it
// can verify but not sign.
func LoadCA(base string) (*CA, error) {
	pair, err := loadPair(base+".crt", base+".key")
	if err != nil {
		return nil, fmt.Errorf("reading a certificate authority: %w", err)
	}
	if !pair.Cert.IsCA {
		return nil, fmt.Errorf("%s.crt is not the certificate of an authority", base)
	}
	return &CA{Pair: *pair}, nil
}

// ensureCA returns the authority at base and the files that are to be written
// if it is new.
func ensureCA(base, name string) (*CA, []atomicfile.File, error) {
	ca, err := LoadCA(base)
	if err == nil {
		if time.Now().After(ca.Cert.NotAfter) {
			return nil, nil, fmt.Errorf("the certificate authority %s.crt expired on %s", base, ca.Cert.NotAfter.Format(time.DateOnly))
		}
		return ca, nil, nil
	}
	// Anything else than absence is for a person to look at: a new authority
	// would lock out everyone who trusts the old one.
	if !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	// A key without its certificate is what a crash between the two renames
	// leaves, or someone who brings a key.
	var key crypto.Signer
	data, err := os.ReadFile(base + ".key")
	switch {
	case err == nil:
		if key, err = parseKey(data); err != nil {
			return nil, nil, fmt.Errorf("reading %s.key: %w", base, err)
		}
	case !errors.Is(err, os.ErrNotExist):
		return nil, nil, fmt.Errorf("reading a certificate authority: %w", err)
	}
	if ca, err = newCA(name, key); err != nil {
		return nil, nil, err
	}
	return ca, ca.files(base, false), nil
}

// EnsurePair makes base.crt and base.key hold a certificate of the authority
// that says what spec asks for, by the rules of this package.
func (ca *CA) EnsurePair(base string, spec Spec) (*Pair, error) {
	if err := os.MkdirAll(filepath.Dir(base), 0o755); err != nil {
		return nil, fmt.Errorf("making the directory of a certificate: %w", err)
	}
	pair, files, err := ca.ensure(base, spec)
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(files...); err != nil {
		return nil, fmt.Errorf("keeping a certificate: %w", err)
	}
	return pair, nil
}

// RenewPair makes what is in base.crt and base.key anew, with another key: for the
// same names and uses, whatever they are.
func (ca *CA) RenewPair(base string) (*Pair, error) {
	data, err := os.ReadFile(base + ".crt")
	if err != nil {
		return nil, fmt.Errorf("reading a certificate: %w", err)
	}
	old, err := ParseCertificate(data)
	if err != nil {
		return nil, fmt.Errorf("%s.crt: %w", base, err)
	}
	pair, err := ca.NewPair(SpecOf(old))
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(pair.files(base, false)...); err != nil {
		return nil, fmt.Errorf("keeping a certificate: %w", err)
	}
	return pair, nil
}

func (ca *CA) ensure(base string, spec Spec) (*Pair, []atomicfile.File, error) {
	pair, err := loadPair(base+".crt", base+".key")
	if err == nil && pair.Key != nil && ca.good(pair, spec) {
		return pair, nil, nil
	}
	// Not being allowed to read is the one error that making it again would
	// only hide.
	if errors.Is(err, os.ErrPermission) {
		return nil, nil, fmt.Errorf("reading a certificate: %w", err)
	}
	fresh, err := ca.NewPair(spec)
	if err != nil {
		if ca.Key == nil && pair != nil && pair.Key != nil && time.Now().Before(pair.Cert.NotAfter) {
			// An authority kept elsewhere: what is there has to do.
			return pair, nil, nil
		}
		return nil, nil, err
	}
	return fresh, fresh.files(base, true), nil
}

// good tells whether pair need not be made again.
func (ca *CA) good(pair *Pair, spec Spec) bool {
	cert := pair.Cert
	if now := time.Now(); now.After(pair.RenewAt()) && cert.NotAfter.Before(ca.Cert.NotAfter) || !now.Before(cert.NotAfter) {
		return false
	}
	if cert.CheckSignatureFrom(ca.Cert) != nil {
		return false
	}
	// The name of a server is nothing that anyone checks, and kubeadm's are
	// others than ours; a client's is its user.
	if spec.Client && !spec.Server && cert.Subject.CommonName != spec.CommonName {
		return false
	}
	for _, o := range spec.Organizations {
		if !slices.Contains(cert.Subject.Organization, o) {
			return false
		}
	}
	for _, name := range spec.DNSNames {
		if !slices.Contains(cert.DNSNames, name) {
			return false
		}
	}
	for _, ip := range spec.IPs {
		if !slices.ContainsFunc(cert.IPAddresses, ip.Equal) {
			return false
		}
	}
	return true
}

// files sets where the pair is kept and returns its files. The key comes
// first: a certificate is there only when its key is.
func (p *Pair) files(base string, remakeable bool) []atomicfile.File {
	p.CertFile, p.KeyFile = base+".crt", base+".key"
	return []atomicfile.File{
		{Path: p.KeyFile, Data: p.KeyPEM, Mode: 0o600, Remakeable: remakeable},
		{Path: p.CertFile, Data: p.CertPEM, Mode: 0o644, Remakeable: remakeable},
	}
}

func (s *Set) ensureServiceAccountKey() ([]atomicfile.File, error) {
	s.ServiceAccountKeyFile = filepath.Join(s.Dir, "sa.key")
	s.ServiceAccountPubFile = filepath.Join(s.Dir, "sa.pub")
	var files []atomicfile.File
	data, err := os.ReadFile(s.ServiceAccountKeyFile)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if s.ServiceAccountKey, err = newKey(); err != nil {
			return nil, err
		}
		if data, err = marshalKey(s.ServiceAccountKey); err != nil {
			return nil, err
		}
		files = append(files, atomicfile.File{Path: s.ServiceAccountKeyFile, Data: data, Mode: 0o600})
	case err != nil:
		return nil, fmt.Errorf("reading the key of service accounts: %w", err)
	default:
		if s.ServiceAccountKey, err = parseKey(data); err != nil {
			return nil, fmt.Errorf("reading %s: %w", s.ServiceAccountKeyFile, err)
		}
	}
	info, err := os.Stat(s.ServiceAccountPubFile)
	if err == nil && info.Size() > 0 && len(files) == 0 {
		// It may hold older keys as well, so it is not compared.
		return nil, nil
	}
	pub, err := marshalPublic(s.ServiceAccountKey.Public())
	if err != nil {
		return nil, err
	}
	return append(files, atomicfile.File{Path: s.ServiceAccountPubFile, Data: pub, Mode: 0o600, Remakeable: true}), nil
}

// Lock makes the caller the only one that changes the certificates in dir, until it
// calls what is returned.
func Lock(dir string) (func(), error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("locking the directory of certificates: %w", err)
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", dir, err)
	}
	return func() { f.Close() }, nil
}
