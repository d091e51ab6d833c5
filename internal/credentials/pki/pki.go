// Package pki creates and manages the keys and certificates of a cluster. The files have the names
// of kubeadm, so that directories can be exchanged with kubeadm. All created keys are ECDSA P-256;
// keys of other types can be read.
//
// CAs and the service account key are created once and never replaced. All other certificates are
// recreated when they are missing, are not readable, do not match their key or CA, lack a required
// name or address, or have reached two thirds of their validity. Therefore only CAs and the service
// account key are synced to disk before they are used.
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

	"hyperkube/internal/host/atomicfile"
)

// KubeletClientGroup is the group of the client certificate with which API servers authenticate to
// kubelets. The API server binds this group to a role that grants the kubelet API and nothing else.
const KubeletClientGroup = "system:hyperkube:kubelet-clients"

// Config specifies the names and addresses in the certificates.
type Config struct {
	// NodeName is the name of this machine's node. It may be empty.
	NodeName string
	// NodeAddresses are the addresses of the API server and etcd on this machine. Loopback
	// addresses are always added.
	NodeAddresses []net.IP
	// ServiceAddresses are the addresses of the Service kubernetes.default, the first one of each
	// service CIDR.
	ServiceAddresses []net.IP
	// ClusterDomain defaults to cluster.local.
	ClusterDomain string
	// ExtraNames are additional DNS names and addresses of the API server, such as those of a load
	// balancer.
	ExtraNames []string
}

// Set contains the CAs, keys and certificates that the components of a control plane node need. It is immutable
// after Ensure or Load has returned it.
type Set struct {
	// Dir is the directory of the files.
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

// authority describes a certificate authority of a control plane node: its file name without extension, its common
// name, and the field of Set that contains it.
type authority struct {
	file, name string
	dst        **CA
}

// authorities returns the descriptions of the three CAs of a control plane node, which are stored in s.
func (s *Set) authorities() []authority {
	return []authority{
		{"ca", "kubernetes", &s.CA},
		{"front-proxy-ca", "front-proxy-ca", &s.FrontProxyCA},
		{"etcd/ca", "etcd-ca", &s.EtcdCA},
	}
}

// leaf describes a certificate of a control plane node that is not a CA: its file name without extension, the CA
// that signs it, its Spec, and the field of Set that contains it.
type leaf struct {
	file string
	ca   *CA
	spec Spec
	dst  **Pair
}

// leaves returns the descriptions of all certificates of a control plane node that are not CAs. The descriptions
// refer to the CAs of s, which must be set before if the caller signs certificates.
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
	// etcd's gateway connects to the server with the server's own certificate, and members use one
	// certificate for both roles.
	etcd.Client = true
	return []leaf{
		{"apiserver", s.CA, Server("kube-apiserver", api...), &s.APIServer},
		{"apiserver-kubelet-client", s.CA, Client("kube-apiserver-kubelet-client", KubeletClientGroup), &s.APIServerKubeletClient},
		{"front-proxy-client", s.FrontProxyCA, Client("front-proxy-client"), &s.FrontProxyClient},
		{"etcd/server", s.EtcdCA, etcd, &s.EtcdServer},
		{"etcd/peer", s.EtcdCA, etcd, &s.EtcdPeer},
		{"etcd/healthcheck-client", s.EtcdCA, Client("kube-etcd-healthcheck-client"), &s.EtcdHealthcheckClient},
		{"apiserver-etcd-client", s.EtcdCA, Client("kube-apiserver-etcd-client"), &s.APIServerEtcdClient},
	}
}

// Pairs returns all certificates of s that are not CAs, with their keys.
func (s *Set) Pairs() []*Pair {
	return []*Pair{s.APIServer, s.APIServerKubeletClient, s.FrontProxyClient, s.EtcdServer, s.EtcdPeer, s.EtcdHealthcheckClient, s.APIServerEtcdClient}
}

// Ensure creates all missing and renews all invalid files in dir for cfg, and returns the Set. Valid files are kept.
// Concurrent processes wait for each other. If certificates are missing that cannot be signed here, because the key
// of their CA is elsewhere, Ensure returns a MissingError that lists all of them, and writes nothing. An expired CA
// is an error.
func Ensure(dir string, cfg Config) (*Set, error) {
	if err := os.MkdirAll(filepath.Join(dir, "etcd"), 0o755); err != nil {
		return nil, fmt.Errorf("creating certificates directory: %w", err)
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
		return nil, fmt.Errorf("writing certificates: %w", err)
	}
	return set, nil
}

// Load loads the files that Ensure has created in dir and changes nothing. It does not check whether the certificates
// are still valid. A certificate whose key file is missing has no Key, which is normal only for CAs. Any other
// missing file is an error, except for sa.pub, which it does not read.
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
		return nil, fmt.Errorf("reading service account key: %w", err)
	}
	if set.ServiceAccountKey, err = parseKey(data); err != nil {
		return nil, fmt.Errorf("reading %s: %w", set.ServiceAccountKeyFile, err)
	}
	return set, nil
}

// LoadCA loads the CA in base.crt and base.key. Without a key file, the CA can verify but not sign. It returns an
// error if the certificate is missing, is not that of a CA or does not match the key. It does not check whether it
// has expired.
func LoadCA(base string) (*CA, error) {
	pair, err := loadPair(base+".crt", base+".key")
	if err != nil {
		return nil, fmt.Errorf("reading certificate authority: %w", err)
	}
	if !pair.Cert.IsCA {
		return nil, fmt.Errorf("%s.crt is not a CA certificate", base)
	}
	return &CA{Pair: *pair}, nil
}

// ensureCA returns the CA in base.crt and base.key. If there is none, it creates one with the common name name, from
// base.key if that exists, and returns the files that the caller must write. An expired or unreadable CA is an error.
func ensureCA(base, name string) (*CA, []atomicfile.File, error) {
	ca, err := LoadCA(base)
	if err == nil {
		if time.Now().After(ca.Cert.NotAfter) {
			return nil, nil, fmt.Errorf("certificate authority %s.crt expired on %s", base, ca.Cert.NotAfter.Format(time.DateOnly))
		}
		return ca, nil, nil
	}
	// An operator must handle all other errors, because clients that trust the existing CA would
	// not trust a new one.
	if !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	// A key without a certificate is the result of a crash between the two renames, or the operator
	// has provided the key.
	var key crypto.Signer
	data, err := os.ReadFile(base + ".key")
	switch {
	case err == nil:
		if key, err = parseKey(data); err != nil {
			return nil, nil, fmt.Errorf("reading %s.key: %w", base, err)
		}
	case !errors.Is(err, os.ErrNotExist):
		return nil, nil, fmt.Errorf("reading certificate authority: %w", err)
	}
	if ca, err = newCA(name, key); err != nil {
		return nil, nil, err
	}
	return ca, ca.files(base, false), nil
}

// EnsurePair returns the certificate in base.crt and base.key. If it is missing, due for renewal or not valid for
// spec, EnsurePair replaces it first, as described in the package documentation. If the key of the CA is not
// available, it returns an existing certificate that has not expired, whether it is valid for spec or not, and
// otherwise an error. It creates the directory.
func (ca *CA) EnsurePair(base string, spec Spec) (*Pair, error) {
	if err := os.MkdirAll(filepath.Dir(base), 0o755); err != nil {
		return nil, fmt.Errorf("creating certificate directory: %w", err)
	}
	pair, files, err := ca.ensure(base, spec)
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(files...); err != nil {
		return nil, fmt.Errorf("writing certificate: %w", err)
	}
	return pair, nil
}

// RenewPair replaces base.crt and base.key by a new certificate with a new key for the same names and usages, whether
// the old one is due for renewal or not. The new one has the default validity. It returns an error if base.crt cannot
// be read or the key of the CA is not available.
func (ca *CA) RenewPair(base string) (*Pair, error) {
	data, err := os.ReadFile(base + ".crt")
	if err != nil {
		return nil, fmt.Errorf("reading certificate: %w", err)
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
		return nil, fmt.Errorf("writing certificate: %w", err)
	}
	return pair, nil
}

// ensure does the same as EnsurePair, but returns the files that the caller must write instead of writing them, nil
// if the existing certificate is kept.
func (ca *CA) ensure(base string, spec Spec) (*Pair, []atomicfile.File, error) {
	pair, err := loadPair(base+".crt", base+".key")
	if err == nil && pair.Key != nil && ca.valid(pair, spec) {
		return pair, nil, nil
	}
	// Do not replace files that cannot be read because of missing permissions; this would hide the
	// problem.
	if errors.Is(err, os.ErrPermission) {
		return nil, nil, fmt.Errorf("reading certificate: %w", err)
	}
	fresh, err := ca.NewPair(spec)
	if err != nil {
		if ca.Key == nil && pair != nil && pair.Key != nil && time.Now().Before(pair.Cert.NotAfter) {
			// The key of the CA is not available: keep the existing certificate.
			return pair, nil, nil
		}
		return nil, nil, err
	}
	return fresh, fresh.files(base, true), nil
}

// valid reports whether pair is signed by the CA, has not expired, is not due for renewal, and contains all names,
// addresses and organizations of spec; it may contain more. A certificate that is valid as long as the CA is not due
// for renewal, because a new one would not be valid longer. The common name must match only if spec is for clients
// and not for servers.
func (ca *CA) valid(pair *Pair, spec Spec) bool {
	cert := pair.Cert
	if now := time.Now(); now.After(pair.RenewAt()) && cert.NotAfter.Before(ca.Cert.NotAfter) || !now.Before(cert.NotAfter) {
		return false
	}
	if cert.CheckSignatureFrom(ca.Cert) != nil {
		return false
	}
	// The common name of a server certificate is not verified, and kubeadm uses other names. The
	// common name of a client certificate is the user name.
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

// files sets the paths of the pair to base.crt and base.key and returns both files for
// atomicfile.Write. The key is first, so that a certificate file only exists together with its key.
// remakeable is set for certificates that can be created again after a power failure, so that they
// need not be synced.
func (p *Pair) files(base string, remakeable bool) []atomicfile.File {
	p.CertFile, p.KeyFile = base+".crt", base+".key"
	return []atomicfile.File{
		{Path: p.KeyFile, Data: p.KeyPEM, Mode: 0o600, SkipSync: remakeable},
		{Path: p.CertFile, Data: p.CertPEM, Mode: 0o644, SkipSync: remakeable},
	}
}

// ensureServiceAccountKey sets the service account key of s from sa.key, or generates one if the file does not exist.
// It returns the files that the caller must write: sa.key if it is new, and sa.pub if that is missing or empty or
// sa.key is new.
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
		return nil, fmt.Errorf("reading service account key: %w", err)
	default:
		if s.ServiceAccountKey, err = parseKey(data); err != nil {
			return nil, fmt.Errorf("reading %s: %w", s.ServiceAccountKeyFile, err)
		}
	}
	info, err := os.Stat(s.ServiceAccountPubFile)
	if err == nil && info.Size() > 0 && len(files) == 0 {
		// The file may also contain older keys, so it is not compared.
		return nil, nil
	}
	pub, err := marshalPublic(s.ServiceAccountKey.Public())
	if err != nil {
		return nil, err
	}
	return append(files, atomicfile.File{Path: s.ServiceAccountPubFile, Data: pub, Mode: 0o600, SkipSync: true}), nil
}

// Lock acquires an exclusive lock for changing the certificates in dir, and waits while another
// process holds it. The returned function releases the lock.
func Lock(dir string) (func(), error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("locking certificates directory: %w", err)
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
