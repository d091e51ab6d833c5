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

// How long what this package signs is valid.
const (
	caValidity   = 10 * 365 * 24 * time.Hour
	leafValidity = 365 * 24 * time.Hour
	// backdate makes certificates valid on machines whose clock is a little
	// behind that of the signer.
	backdate = 5 * time.Minute
)

// Pair is a certificate and its key. It is not changed after it was made.
type Pair struct {
	Cert *x509.Certificate
	// Key is nil when only the certificate is there.
	Key crypto.Signer
	// CertPEM and KeyPEM are as in the files. CertPEM may hold more than
	// one certificate.
	CertPEM, KeyPEM []byte
	// CertFile and KeyFile are where the pair is kept; empty if it is in
	// memory only.
	CertFile, KeyFile string
}

// TLS returns the pair for a tls.Config.
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

// RenewAt is when the pair is due to be made again: when a third of its time is left.
func (p *Pair) RenewAt() time.Time {
	return p.Cert.NotAfter.Add(-p.Cert.NotAfter.Sub(p.Cert.NotBefore) / 3)
}

// CA is a certificate authority. Its methods are safe for several goroutines.
type CA struct {
	Pair
}

// Pool holds the authority's certificates, for a tls.Config.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.CertPEM)
	return pool
}

// Spec is what a certificate says.
type Spec struct {
	// CommonName is a client's user name.
	CommonName string
	// Organizations are a client's groups.
	Organizations []string
	// DNSNames and IPs are what a server is reached by.
	DNSNames []string
	IPs      []net.IP
	// Client and Server tell what the certificate may be used for.
	Client, Server bool
	// Validity is from now; zero means a year.
	Validity time.Duration
}

// Client is the specification of a user's certificate.
func Client(user string, groups ...string) Spec {
	return Spec{CommonName: user, Organizations: groups, Client: true}
}

// Node is the specification of a kubelet's client certificate.
func Node(name string) Spec {
	return Client("system:node:"+name, "system:nodes")
}

// Server is the specification of a server's certificate. Each of hosts is an
// address or a DNS name, and is named once however often it is among them.
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

// KubeletServer is the specification of a kubelet's serving certificate.
func KubeletServer(node string, hosts ...string) Spec {
	s := Server("system:node:"+node, append([]string{node}, hosts...)...)
	s.Organizations = []string{"system:nodes"}
	return s
}

// SpecOf is what a certificate says but for how long it is valid, so that it can be
// made anew.
func SpecOf(cert *x509.Certificate) Spec {
	return Spec{
		CommonName: cert.Subject.CommonName, Organizations: cert.Subject.Organization,
		DNSNames: cert.DNSNames, IPs: cert.IPAddresses,
		Client: slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageClientAuth),
		Server: slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageServerAuth),
	}
}

// errNoKey says that a certificate is needed that only the authority's absent
// key could sign.
var errNoKey = errors.New("the authority's key is not here")

// NewPair makes a key and signs a certificate for it, both in memory.
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

// Sign signs a certificate for someone's key.
func (ca *CA) Sign(pub crypto.PublicKey, spec Spec) (*x509.Certificate, error) {
	if ca.Key == nil {
		return nil, fmt.Errorf("signing a certificate for %q: %w", spec.CommonName, errNoKey)
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

// newCA makes an authority around key, or around a new key if it is nil.
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
		// kubeadm's authorities have the name as a DNS name too; etcd's
		// gateway and some scanners ask for one.
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

func sign(template, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	// A serial number has at most 20 octets and is positive; 2^127 makes a
	// collision as unlikely as a guess.
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("making a serial number: %w", err)
	}
	template.SerialNumber = serial.Add(serial, big.NewInt(1))
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, key)
	if err != nil {
		return nil, fmt.Errorf("signing a certificate for %q: %w", template.Subject.CommonName, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading the new certificate for %q: %w", template.Subject.CommonName, err)
	}
	return cert, nil
}

func newKey() (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	return key, nil
}
