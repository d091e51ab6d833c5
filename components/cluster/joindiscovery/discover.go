package joindiscovery

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
	"hyperkube/internal/base/backoff"
)

// infoName is the ConfigMap in the namespace kube-public that every client may read, also without authentication. It
// contains a kubeconfig without credentials under kubeconfigKey, and its signatures.
const (
	infoName      = "cluster-info"
	kubeconfigKey = "kubeconfig"
)

// Cluster contains what a machine needs to connect to the cluster that it joins. Discovery.Find returns it.
type Cluster struct {
	// Server is the URL of the API server.
	Server string
	// CA contains the PEM certificates that verify the API server.
	CA []byte
	// Auth contains the credentials of the discovery file. It is nil if the file has none or if
	// there is no file.
	Auth *clientcmdapi.AuthInfo
	// ClockOffset is the difference between the clock of the cluster and the clock of this machine. It is
	// positive if the cluster's clock is ahead. Its precision is that of the HTTP Date header, one
	// second. It is set when discovery succeeds.
	ClockOffset time.Duration
}

// Info returns the ConfigMap cluster-info, without signatures. The controller manager signs it with each token.
func (c Cluster) Info() (*corev1.ConfigMap, error) {
	config := clientcmdapi.NewConfig()
	cluster := clientcmdapi.NewCluster()
	cluster.Server, cluster.CertificateAuthorityData = c.Server, c.CA
	config.Clusters[""] = cluster
	data, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("encoding cluster information: %w", err)
	}
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: infoName, Namespace: metav1.NamespacePublic},
		Data:       map[string]string{kubeconfigKey: string(data)},
	}, nil
}

// Hash returns the SHA-256 hash of a certificate's public key in the format of
// --discovery-token-ca-cert-hash.
func Hash(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Discovery contains the parameters with which a joining machine finds and verifies a cluster.
type Discovery struct {
	// Endpoint is the HOST:PORT of the API server.
	Endpoint string
	Token    Token
	// Hashes are the accepted hashes of the cluster CA. If there are none, Unsafe must be set, and
	// any server that has signed with the token is trusted.
	Hashes []string
	Unsafe bool
	// MaxSkew is the maximum difference between the clocks of the cluster and of this machine; 0
	// means no limit. Discovery is retried until the difference is small enough.
	MaxSkew time.Duration
	// file is the cluster from a discovery file. It is nil if there is no such file.
	file *Cluster
	// OnError is called with the error of each failed attempt. It may be nil.
	OnError func(error)
}

// Validate returns an error if the address of the API server, the CA hashes or, without hashes, the permission to skip
// the verification is missing or invalid. It checks nothing if a discovery file was loaded.
func (d *Discovery) Validate() error {
	if d.file != nil {
		return nil
	}
	if _, _, err := net.SplitHostPort(d.Endpoint); err != nil {
		return fmt.Errorf("address of the API server: expected HOST:PORT: %w", err)
	}
	if len(d.Hashes) == 0 && !d.Unsafe {
		return errors.New("the hash of the cluster CA is required to verify the cluster: " +
			"specify --discovery-token-ca-cert-hash or --discovery-token-unsafe-skip-ca-verification")
	}
	for _, h := range d.Hashes {
		digest, ok := strings.CutPrefix(strings.ToLower(h), "sha256:")
		raw, err := hex.DecodeString(digest)
		if !ok || err != nil || len(raw) != sha256.Size {
			return fmt.Errorf("%q is not a valid CA hash: expected sha256: and 64 hexadecimal digits", h)
		}
	}
	return nil
}

// errNotReady is a condition that is retried: the cluster does not respond, or it has not yet signed
// with the token.
var errNotReady = errors.New("the cluster is not ready for joining")

// Find reads the cluster information and verifies it. The signature of the token must be valid, and the CA must match
// one of the hashes, if there are any. It retries while the cluster does not respond, has not signed yet, or while the
// clocks differ too much, until ctx is done. Other errors are returned immediately.
func (d *Discovery) Find(ctx context.Context) (*Cluster, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	retry := backoff.Backoff{First: 100 * time.Millisecond, Max: 2 * time.Second}
	var last error
	for {
		c, err := d.find(ctx)
		if err == nil || !errors.Is(err, errNotReady) {
			return c, err
		}
		if ctx.Err() != nil && last != nil {
			err = last // the last complete answer, rather than that the request was canceled
		}
		last = err
		if d.OnError != nil {
			d.OnError(err)
		}
		if !retry.Pause(ctx) {
			return nil, fmt.Errorf("reading cluster information from %s: %w", d.Endpoint, err)
		}
	}
}

// find makes one attempt of Find. Errors that may be resolved by a retry wrap errNotReady.
func (d *Discovery) find(ctx context.Context) (*Cluster, error) {
	if d.file != nil {
		return d.findByFile(ctx)
	}
	// The server is not verified yet, so this request contains no secrets.
	text, ahead, err := d.readInfo(ctx, rest.TLSClientConfig{Insecure: true}, true)
	if err != nil {
		return nil, err
	}
	c, err := parseInfo(text)
	if err != nil {
		return nil, err
	}
	if c.ClockOffset = ahead; len(d.Hashes) > 0 {
		if err := d.checkHashes(c.CA); err != nil {
			return nil, err
		}
		// Every client that knows the token can sign. Only the cluster has a certificate that its
		// CA signed.
		again, _, err := d.readInfo(ctx, rest.TLSClientConfig{CAData: c.CA}, false)
		if err != nil {
			return nil, err
		}
		if again != text {
			return nil, errors.New("the cluster information differs over a verified connection")
		}
	}
	if err := d.checkSkew(ahead); err != nil {
		return nil, err
	}
	return c, nil
}

// checkSkew returns an error, after which Find retries, if the clocks differ by more than MaxSkew. A MaxSkew of zero
// disables the check.
func (d *Discovery) checkSkew(ahead time.Duration) error {
	if d.MaxSkew > 0 && ahead.Abs() > d.MaxSkew {
		return fmt.Errorf("%w: %s: synchronize the clocks, for example with NTP", errNotReady, Skew(ahead))
	}
	return nil
}

// Skew describes a clock difference. offset is the time by which the clock of the cluster is ahead
// of this machine's.
func Skew(offset time.Duration) string {
	word := "behind"
	if offset < 0 {
		word = "ahead of"
	}
	return fmt.Sprintf("this machine's clock is %v %s the cluster's", offset.Abs().Round(time.Second), word)
}

// clockTransport is an HTTP transport that stores in offset by how much the server's clock is ahead, from the Date
// header of each response.
type clockTransport struct {
	http.RoundTripper
	offset *time.Duration
}

// RoundTrip sends r and stores the offset, unless the response has no valid Date header.
func (c clockTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := c.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if serverTime, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		*c.offset = time.Until(serverTime)
	}
	return response, nil
}

// readInfo reads the kubeconfig in the ConfigMap cluster-info from the server and, if signed is set, verifies its
// signature with the token. It also returns by how much the server's clock is ahead of this machine's.
func (d *Discovery) readInfo(ctx context.Context, tls rest.TLSClientConfig, signed bool) (string, time.Duration, error) {
	var ahead time.Duration
	kube, err := kubernetes.NewForConfig(&rest.Config{
		Host: "https://" + d.Endpoint, TLSClientConfig: tls, Timeout: 10 * time.Second,
		WrapTransport: func(t http.RoundTripper) http.RoundTripper { return clockTransport{t, &ahead} },
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
		return "", 0, fmt.Errorf("%w: ConfigMap %s has no kubeconfig", errNotReady, infoName)
	}
	if !signed {
		return text, ahead, nil
	}
	signature, ok := info.Data[bootstraptokens.SignatureKey(d.Token.ID)]
	if !ok {
		return "", 0, fmt.Errorf("%w: there is no signature of the token %s, which may have expired", errNotReady, d.Token.ID)
	}
	if !bootstraptokens.Verify(text, signature, d.Token.ID, d.Token.Key) {
		return "", 0, errors.New("the signature of the cluster information is not valid: the token is wrong, or the server impersonates the cluster")
	}
	return text, ahead, nil
}

// readError adds an explanation to an error from reading the cluster information, and marks
// transient errors with errNotReady.
func readError(err error, now time.Time) error {
	var unknown x509.UnknownAuthorityError
	var wrong x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && now.Before(invalid.Cert.NotBefore):
		return fmt.Errorf("%w: the API server's certificate is not valid yet according to this machine's clock (%s): check the clock (%w)", errNotReady, now.UTC().Format(time.RFC3339), err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("%w: the API server's certificate has expired according to this machine's clock (%s): check the clock (%w)", errNotReady, now.UTC().Format(time.RFC3339), err)
	case errors.As(err, &unknown), errors.As(err, &wrong):
		return fmt.Errorf("verifying the API server with the CA of the cluster information: %w", err)
	}
	return fmt.Errorf("%w: %w", errNotReady, err)
}

// parseInfo returns the server and CA of the first cluster in a kubeconfig that has both.
func parseInfo(text string) (*Cluster, error) {
	config, err := clientcmd.Load([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("reading cluster information: %w", err)
	}
	for _, c := range config.Clusters {
		if c.Server != "" && len(c.CertificateAuthorityData) > 0 {
			return &Cluster{Server: c.Server, CA: c.CertificateAuthorityData}, nil
		}
	}
	return nil, errors.New("the cluster information has no server with a CA")
}

// checkHashes returns an error if none of the CA certificates matches one of the hashes.
func (d *Discovery) checkHashes(ca []byte) error {
	for block, rest := pem.Decode(ca); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return fmt.Errorf("reading CA certificate of the cluster: %w", err)
		}
		for _, h := range d.Hashes {
			if strings.EqualFold(h, Hash(cert)) {
				return nil
			}
		}
	}
	return errors.New("the CA of the cluster matches none of the given hashes: this may be another cluster")
}
