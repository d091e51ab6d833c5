package trust

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"hyperkube/components/controllers/bootstraptokens"
	"hyperkube/internal/lifecycle"
)

// infoName is the ConfigMap of the namespace kube-public that everybody may
// read, with a kubeconfig without credentials and its signatures.
const (
	infoName      = "cluster-info"
	kubeconfigKey = "kubeconfig"
)

// Cluster is what a machine must know of a cluster to enter it.
type Cluster struct {
	// Server is the API server's URL.
	Server string
	// CA are the PEM certificates that it is verified by.
	CA []byte
	// Auth is what the file says that told of the cluster to enter it with; nil: nothing, or
	// there was no file.
	Auth *clientcmdapi.AuthInfo
	// Ahead is by how much its clock is ahead of this machine's; it may be negative. It is
	// as precise as an answer of HTTP, and known of a cluster that was found.
	Ahead time.Duration
}

// Info is what the cluster says of itself to everybody. The controller
// manager signs it with each token.
func (c Cluster) Info() (*corev1.ConfigMap, error) {
	config := clientcmdapi.NewConfig()
	cluster := clientcmdapi.NewCluster()
	cluster.Server, cluster.CertificateAuthorityData = c.Server, c.CA
	config.Clusters[""] = cluster
	data, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("encoding the cluster's information: %w", err)
	}
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: infoName, Namespace: metav1.NamespacePublic},
		Data:       map[string]string{kubeconfigKey: string(data)},
	}, nil
}

// Hash is how a person writes down which authority a cluster has: the SHA-256
// of its public key.
func Hash(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Discovery is what a machine was told of a cluster.
type Discovery struct {
	// Endpoint is host and port of the API server.
	Endpoint string
	Token    Token
	// Hashes are those of the authorities that are right. Without any,
	// Unsafe must say that whoever has the token may be believed.
	Hashes []string
	Unsafe bool
	// MaxSkew is by how much the clocks of the cluster and of this machine may differ; 0 is
	// by anything. Until they do not, the cluster is not found.
	MaxSkew time.Duration
	// file is what a file says, instead of the cluster itself; nil: there is none.
	file *Cluster
	// Failed is told why the cluster cannot be joined yet; it may be nil.
	Failed func(error)
}

// Validate tells what is wrong with what was told.
func (d *Discovery) Validate() error {
	if d.file != nil {
		return nil
	}
	if _, _, err := net.SplitHostPort(d.Endpoint); err != nil {
		return fmt.Errorf("the address of the API server, HOST:PORT: %w", err)
	}
	if len(d.Hashes) == 0 && !d.Unsafe {
		return errors.New("the hash of the cluster's authority is needed, so that nobody can pose as the cluster: " +
			"give --discovery-token-ca-cert-hash, or --discovery-token-unsafe-skip-ca-verification")
	}
	for _, h := range d.Hashes {
		digest, ok := strings.CutPrefix(strings.ToLower(h), "sha256:")
		raw, err := hex.DecodeString(digest)
		if !ok || err != nil || len(raw) != sha256.Size {
			return fmt.Errorf("%q is no hash of an authority: want sha256: and 64 hexadecimal digits", h)
		}
	}
	return nil
}

// errNotYet is what is worth another try: the cluster does not answer, or has
// not signed with the token yet.
var errNotYet = errors.New("the cluster is not ready to be joined")

// Find asks the cluster who it is, until it says so in a way that can be
// believed or ctx ends. What it says is signed with the token; the certificate
// that it shows must then be of an authority that has one of the hashes.
func (d *Discovery) Find(ctx context.Context) (*Cluster, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	wait := 100 * time.Millisecond
	var last error
	for {
		c, err := d.find(ctx)
		if err == nil || !errors.Is(err, errNotYet) {
			return c, err
		}
		if ctx.Err() != nil && last != nil {
			err = last // what was missing, rather than that a question was cut short
		}
		last = err
		if d.Failed != nil {
			d.Failed(err)
		}
		if !lifecycle.Pause(ctx, wait) {
			return nil, fmt.Errorf("asking %s for the cluster's information: %w", d.Endpoint, err)
		}
		wait = min(2*wait, 2*time.Second)
	}
}

func (d *Discovery) find(ctx context.Context) (*Cluster, error) {
	if d.file != nil {
		return d.findByFile(ctx)
	}
	// Nothing is known of the server yet, so nothing secret is sent to it.
	text, ahead, err := d.read(ctx, rest.TLSClientConfig{Insecure: true}, true)
	if err != nil {
		return nil, err
	}
	c, err := parseInfo(text)
	if err != nil {
		return nil, err
	}
	if c.Ahead = ahead; len(d.Hashes) > 0 {
		if err := d.pinned(c.CA); err != nil {
			return nil, err
		}
		// Whoever has the token can sign; only the cluster can show this.
		again, _, err := d.read(ctx, rest.TLSClientConfig{CAData: c.CA}, false)
		if err != nil {
			return nil, err
		}
		if again != text {
			return nil, errors.New("the cluster says something else of itself over a verified connection")
		}
	}
	if err := d.inTime(ahead); err != nil {
		return nil, err
	}
	return c, nil
}

// inTime is an error of clocks that differ too much.
func (d *Discovery) inTime(ahead time.Duration) error {
	if d.MaxSkew > 0 && ahead.Abs() > d.MaxSkew {
		return fmt.Errorf("%w: %s: set it, with NTP for instance", errNotYet, Skew(ahead))
	}
	return nil
}

// Skew says by how much a cluster's clock is ahead of this machine's.
func Skew(ahead time.Duration) string {
	word := "behind"
	if ahead < 0 {
		word = "ahead of"
	}
	return fmt.Sprintf("this machine's clock is %v %s the cluster's", ahead.Abs().Round(time.Second), word)
}

// clock learns from answers of HTTP what time it is where they come from.
type clock struct {
	http.RoundTripper
	ahead *time.Duration
}

func (c clock) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := c.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if there, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		*c.ahead = time.Until(there)
	}
	return response, nil
}

// read gets the cluster's information and, if wanted, verifies its signature. It tells,
// too, by how much the clock of who answered is ahead.
func (d *Discovery) read(ctx context.Context, tls rest.TLSClientConfig, signed bool) (string, time.Duration, error) {
	var ahead time.Duration
	kube, err := kubernetes.NewForConfig(&rest.Config{
		Host: "https://" + d.Endpoint, TLSClientConfig: tls, Timeout: 10 * time.Second,
		WrapTransport: func(t http.RoundTripper) http.RoundTripper { return clock{t, &ahead} },
	})
	if err != nil {
		return "", 0, err
	}
	info, err := kube.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, infoName, metav1.GetOptions{})
	if err != nil {
		return "", 0, readError(err, time.Now())
	}
	text := info.Data[kubeconfigKey]
	if text == "" {
		return "", 0, fmt.Errorf("%w: there is no kubeconfig in the ConfigMap %s", errNotYet, infoName)
	}
	if !signed {
		return text, ahead, nil
	}
	signature, ok := info.Data[bootstraptokens.SignatureKey(d.Token.ID)]
	if !ok {
		return "", 0, fmt.Errorf("%w: there is no signature by the token %s: it may have expired", errNotYet, d.Token.ID)
	}
	if !bootstraptokens.Verify(text, signature, d.Token.ID, d.Token.Key) {
		return "", 0, errors.New("the cluster's information is not signed with this token: the token is wrong, or somebody poses as the cluster")
	}
	return text, ahead, nil
}

// readError says what it means that the cluster's information could not be read.
func readError(err error, now time.Time) error {
	var unknown x509.UnknownAuthorityError
	var wrong x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && now.Before(invalid.Cert.NotBefore):
		return fmt.Errorf("%w: the API server's certificate is not valid yet by this machine's clock, which says %s: is that right? (%w)", errNotYet, now.UTC().Format(time.RFC3339), err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("%w: the API server's certificate has expired by this machine's clock, which says %s: is that right? (%w)", errNotYet, now.UTC().Format(time.RFC3339), err)
	case errors.As(err, &unknown), errors.As(err, &wrong):
		return fmt.Errorf("the API server is not verified by the authority that the cluster names: %w", err)
	}
	return fmt.Errorf("%w: %w", errNotYet, err)
}

func parseInfo(text string) (*Cluster, error) {
	config, err := clientcmd.Load([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("reading the cluster's information: %w", err)
	}
	for _, c := range config.Clusters {
		if c.Server != "" && len(c.CertificateAuthorityData) > 0 {
			return &Cluster{Server: c.Server, CA: c.CertificateAuthorityData}, nil
		}
	}
	return nil, errors.New("the cluster's information names no server with its authority")
}

// pinned tells whether one of the authorities has one of the hashes.
func (d *Discovery) pinned(ca []byte) error {
	for block, rest := pem.Decode(ca); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return fmt.Errorf("reading the cluster's authority: %w", err)
		}
		for _, h := range d.Hashes {
			if strings.EqualFold(h, Hash(cert)) {
				return nil
			}
		}
	}
	return errors.New("the cluster's authority has none of the hashes given: this is not the cluster that is meant")
}
