package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"
)

// caValidity and leafValidity are for how long the certificates of CAs and all other certificates are valid.
// backdate is how long before their creation their validity begins.
const (
	caValidity   = 10 * 365 * 24 * time.Hour
	leafValidity = 365 * 24 * time.Hour
	// backdate makes certificates valid on machines whose clock is slightly behind the signer's.
	backdate = 5 * time.Minute
)

// Pair is a certificate and its key. It is immutable once it is shared.
type Pair struct {
	Cert *x509.Certificate
	// Key is nil if only the certificate is available.
	Key crypto.Signer
	// CertPEM and KeyPEM are the contents of the files. CertPEM may contain more than one
	// certificate.
	CertPEM, KeyPEM []byte
	// CertFile and KeyFile are the paths of the files, empty if the pair exists in memory only.
	CertFile, KeyFile string
}

// TLS returns the pair as a tls.Certificate, with all certificates of CertPEM as its chain.
func (p *Pair) TLS() tls.Certificate {
	c := tls.Certificate{PrivateKey: p.Key, Leaf: p.Cert}
	for rest := p.CertPEM; ; {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		if block == nil {
			return c
		}
		if block.Type == certificateType {
			c.Certificate = append(c.Certificate, block.Bytes)
		}
	}
}

// RenewAt returns the time from which on the certificate is renewed: when a third of its validity period is left.
func (p *Pair) RenewAt() time.Time {
	return p.Cert.NotAfter.Add(-p.Cert.NotAfter.Sub(p.Cert.NotBefore) / 3)
}

// CA is a certificate authority. Its methods are safe for concurrent use.
type CA struct {
	Pair
}

// Pool returns a certificate pool that trusts the CA, for verifying certificates that it has
// signed.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.CertPEM)
	return pool
}

// Spec specifies the names, usages and validity of a certificate that a CA signs.
type Spec struct {
	// CommonName is the user name of a client.
	CommonName string
	// Organizations are the groups of a client.
	Organizations []string
	// DNSNames and IPs are the names and addresses of a server.
	DNSNames []string
	IPs      []net.IP
	// Client and Server select the extended key usages.
	Client, Server bool
	// Validity is the validity period from now on. Zero means one year. It ends with the validity of the CA at the
	// latest.
	Validity time.Duration
}

// Client returns the Spec of a client certificate that authenticates as user in groups.
func Client(user string, groups ...string) Spec {
	return Spec{CommonName: user, Organizations: groups, Client: true}
}

// Node returns the Spec of the client certificate with which the kubelet of the node name
// authenticates.
func Node(name string) Spec {
	return Client("system:node:"+name, "system:nodes")
}

// Server returns the Spec of a serving certificate. hosts are addresses and DNS names; duplicates
// are removed.
func Server(commonName string, hosts ...string) Spec {
	s := Spec{CommonName: commonName, Server: true}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			if !slices.ContainsFunc(s.IPs, ip.Equal) {
				s.IPs = append(s.IPs, ip)
			}
		} else if h != "" && !slices.Contains(s.DNSNames, h) {
			s.DNSNames = append(s.DNSNames, h)
		}
	}
	return s
}

// KubeletServer returns the Spec of the serving certificate of a node's kubelet. hosts are the
// addresses of the node; its name is added.
func KubeletServer(node string, hosts ...string) Spec {
	s := Server("system:node:"+node, append([]string{node}, hosts...)...)
	s.Organizations = []string{"system:nodes"}
	return s
}

// SpecOf returns the Spec of an existing certificate, with which it can be renewed: its names, addresses and usages.
// The result has the default validity.
func SpecOf(cert *x509.Certificate) Spec {
	return Spec{
		CommonName: cert.Subject.CommonName, Organizations: cert.Subject.Organization,
		DNSNames: cert.DNSNames, IPs: cert.IPAddresses,
		Client: slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageClientAuth),
		Server: slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageServerAuth),
	}
}

// errNoKey is returned when a certificate must be signed but the CA's key is not available.
var errNoKey = errors.New("key of the certificate authority is not available")

// NewPair generates a key and signs a certificate for it according to spec. It writes no files. It
// returns an error if the key of the CA is not available.
func (ca *CA) NewPair(spec Spec) (*Pair, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	cert, err := ca.Sign(key.Public(), spec)
	if err != nil {
		return nil, err
	}
	return newPair(cert, key)
}

// Sign signs a certificate for the public key pub according to spec. Its validity begins 5 minutes ago and does not
// end after the CA's. It returns an error if the key of the CA is not available.
func (ca *CA) Sign(pub crypto.PublicKey, spec Spec) (*x509.Certificate, error) {
	if ca.Key == nil {
		return nil, fmt.Errorf("signing certificate for %q: %w", spec.CommonName, errNoKey)
	}
	now := time.Now()
	validity := spec.Validity
	if validity == 0 {
		validity = leafValidity
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: spec.CommonName, Organization: spec.Organizations},
		DNSNames:              spec.DNSNames,
		IPAddresses:           spec.IPs,
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(validity),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
	}
	if _, rsa := pub.(interface{ Size() int }); rsa {
		template.KeyUsage |= x509.KeyUsageKeyEncipherment
	}
	if template.NotAfter.After(ca.Cert.NotAfter) {
		template.NotAfter = ca.Cert.NotAfter
	}
	if spec.Client {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	if spec.Server {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	return sign(template, ca.Cert, pub, ca.Key)
}

// newCA creates a self-signed CA with the common name name, in memory. It uses key, or a new key if
// key is nil.
func newCA(name string, key crypto.Signer) (*CA, error) {
	if key == nil {
		var err error
		if key, err = newKey(); err != nil {
			return nil, err
		}
	}
	now := time.Now()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name},
		// kubeadm's CAs also have the name as a DNS name; etcd's gateway and some scanners require
		// one.
		DNSNames:              []string{name},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(caValidity),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	cert, err := sign(template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	pair, err := newPair(cert, key)
	if err != nil {
		return nil, err
	}
	return &CA{Pair: *pair}, nil
}

// sign signs template with key, which belongs to the certificate parent, and a random serial number. pub is the
// public key in the certificate. It modifies template.
func sign(template, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	// A serial number is positive and has at most 20 octets. With 2^127 values, collisions are
	// negligible.
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("generating serial number: %w", err)
	}
	template.SerialNumber = serial.Add(serial, big.NewInt(1))
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, key)
	if err != nil {
		return nil, fmt.Errorf("signing certificate for %q: %w", template.Subject.CommonName, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parsing new certificate for %q: %w", template.Subject.CommonName, err)
	}
	return cert, nil
}

// newKey generates an ECDSA key with the curve P-256.
func newKey() (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating key: %w", err)
	}
	return key, nil
}
