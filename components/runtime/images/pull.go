package images

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"sigs.k8s.io/yaml"
)

// Registries says how registries are reached. The form of its file is that of
// k3s' registries.yaml.
type Registries struct {
	// Mirrors are tried in order before the registry itself, by its host;
	// "*" stands for every host that has no entry.
	Mirrors map[string]Mirror `json:"mirrors,omitempty"`
	// Configs are by the host, with a port if it has one, that is called.
	Configs map[string]RegistryConfig `json:"configs,omitempty"`
}

// Mirror is where images of a registry may also be.
type Mirror struct {
	// Endpoints are URLs such as "https://mirror.example" or "http://…".
	Endpoints []string `json:"endpoint"`
}

// RegistryConfig is about one registry.
type RegistryConfig struct {
	Auth *Auth      `json:"auth,omitempty"`
	TLS  *TLSConfig `json:"tls,omitempty"`
	// PlainHTTP calls it without TLS.
	PlainHTTP bool `json:"plain_http,omitempty"`
}

// TLSConfig is how a registry's certificate is verified.
type TLSConfig struct {
	CAFile             string `json:"ca_file,omitempty"`
	CertFile           string `json:"cert_file,omitempty"`
	KeyFile            string `json:"key_file,omitempty"`
	InsecureSkipVerify bool   `json:"insecure_skip_verify,omitempty"`
}

// Auth is what a registry is told of the caller. The zero value is nobody.
type Auth struct {
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	Auth          string `json:"auth,omitempty"` // base64 of "username:password"
	IdentityToken string `json:"identity_token,omitempty"`
	RegistryToken string `json:"registry_token,omitempty"`
}

// LoadRegistries reads a file of Registries, YAML or JSON. No name or no file
// gives the zero value.
func LoadRegistries(file string) (Registries, error) {
	var r Registries
	if file == "" {
		return r, nil
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = yaml.UnmarshalStrict(data, &r)
	}
	if err != nil {
		return r, fmt.Errorf("reading the registry configuration: %w", err)
	}
	return r, nil
}

func (a Auth) authenticator() (authn.Authenticator, error) {
	c := authn.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken}
	if a.Auth != "" && c.Username == "" {
		plain, err := base64.StdEncoding.DecodeString(a.Auth)
		if err != nil {
			return nil, fmt.Errorf("decoding the registry credentials: %w", err)
		}
		user, password, ok := strings.Cut(string(plain), ":")
		if !ok {
			return nil, errors.New("the registry credentials have no colon")
		}
		c.Username, c.Password = user, strings.TrimRight(password, "\x00")
	}
	if c == (authn.AuthConfig{}) {
		return authn.Anonymous, nil
	}
	return authn.FromConfig(c), nil
}

// AtServer tells whether credentials for server, a registry's address as Docker's
// configuration has it, are for the registry that ref names. Without a server they
// are for whichever it is.
func AtServer(ref, server string) bool {
	if server == "" {
		return true
	}
	normal, err := Normalize(ref)
	if err != nil {
		return false
	}
	host, _, _ := strings.Cut(normal, "/")
	if _, rest, ok := strings.Cut(server, "://"); ok {
		server = rest
	}
	server, _, _ = strings.Cut(server, "/")
	switch server {
	case "index.docker.io", "registry-1.docker.io":
		server = "docker.io"
	}
	return strings.EqualFold(host, server)
}

// endpoint is one place to ask for an image.
type endpoint struct {
	registry string // host, with a port if it has one
	insecure bool   // plain HTTP
	prefix   string // path before the repository
	mirror   bool
}

func (r Registries) endpoints(host string) ([]endpoint, error) {
	mirror, ok := r.Mirrors[host]
	if !ok {
		mirror = r.Mirrors["*"]
	}
	var list []endpoint
	for _, e := range mirror.Endpoints {
		u, err := url.Parse(e)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("bad endpoint %q of a mirror of %s", e, host)
		}
		prefix := strings.Trim(strings.TrimPrefix(strings.Trim(u.Path, "/"), "v2"), "/")
		list = append(list, endpoint{registry: u.Host, insecure: u.Scheme == "http", prefix: prefix, mirror: true})
	}
	return append(list, endpoint{registry: host, insecure: r.Configs[host].PlainHTTP}), nil
}

// transport returns how to call a host, and whether the caller closes it.
func (r Registries) transport(host string) (*http.Transport, error) {
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 60 * time.Second,
		MaxIdleConnsPerHost:   4,
	}
	c := r.Configs[host].TLS
	if c == nil {
		return t, nil
	}
	t.TLSClientConfig = &tls.Config{InsecureSkipVerify: c.InsecureSkipVerify} //nolint:gosec // the administrator asked for it
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading the CA of %s: %w", host, err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("no certificate in the CA file of %s", host)
		}
		t.TLSClientConfig.RootCAs = pool
	}
	if c.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("reading the client certificate for %s: %w", host, err)
		}
		t.TLSClientConfig.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

// Pull brings an image from its registry, or one of the mirrors, and returns
// it. Errors read as users of Kubernetes know them; ErrNotFound and
// ErrUnauthorized can be told from them.
func (s *Store) Pull(ctx context.Context, ref string, auth Auth, registries Registries) (*Image, error) {
	normal, err := Normalize(ref)
	if err != nil {
		return nil, err
	}
	image, err := s.pull(ctx, normal, auth, registries)
	if err != nil {
		return nil, fmt.Errorf("failed to pull and unpack image %q: %w", normal, err)
	}
	return image, nil
}

func (s *Store) pull(ctx context.Context, normal string, auth Auth, registries Registries) (*Image, error) {
	host, _, _ := strings.Cut(normal, "/")
	endpoints, err := registries.endpoints(host)
	if err != nil {
		return nil, err
	}
	var failed error
	for _, e := range endpoints {
		image, err := s.pullFrom(ctx, e, normal, auth, registries)
		if err == nil || ctx.Err() != nil || !e.mirror {
			return image, err
		}
		failed = err
		s.log.Warn("a mirror does not give the image", "image", normal, "mirror", e.registry, "error", failed)
	}
	return nil, failed
}

// pullFrom pulls from one place.
func (s *Store) pullFrom(ctx context.Context, e endpoint, normal string, auth Auth, registries Registries) (*Image, error) {
	ref, err := e.reference(normal)
	if err != nil {
		return nil, err
	}
	if c := registries.Configs[e.registry].Auth; c != nil && (e.mirror || auth == Auth{}) {
		auth = *c
	} else if e.mirror {
		// Credentials are for the registry that they were given for.
		auth = Auth{}
	}
	login, err := auth.authenticator()
	if err != nil {
		return nil, err
	}
	base, err := registries.transport(e.registry)
	if err != nil {
		return nil, err
	}
	defer base.CloseIdleConnections()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	image, digest, err := resolve(ref, remote.WithContext(ctx), remote.WithAuth(login), remote.WithTransport(&guarded{base, cancel}))
	if err != nil {
		return nil, fmt.Errorf("failed to resolve reference %q: %w", normal, explain(err, normal))
	}
	config, err := image.RawConfigFile()
	if err != nil {
		return nil, explain(err, normal)
	}
	record := Image{Digests: []string{repository(normal) + "@" + digest}, Size: uint64(len(config))}
	if !isDigest(normal) {
		record.Tags = []string{normal}
	}
	blobs, size, err := blobsOf(image, normal)
	if err != nil {
		return nil, err
	}
	record.Size += size
	done, err := s.assemble(ctx, config, blobs, record)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errStalled) {
		err = cause
	}
	return done, err
}

// reference is what an image is called at the endpoint.
func (e endpoint) reference(normal string) (name.Reference, error) {
	var options []name.Option
	if e.insecure {
		options = append(options, name.Insecure)
	}
	_, path, _ := strings.Cut(normal, "/")
	if e.prefix != "" {
		path = e.prefix + "/" + path
	}
	ref, err := name.ParseReference(e.registry+"/"+path, options...)
	if err != nil {
		return nil, fmt.Errorf("failed to parse image reference %q: %w", normal, err)
	}
	return ref, nil
}

// resolve asks a registry for the image of this machine's platform, and returns the digest
// by which the reference is known, too. Layers are asked for when they are read.
func resolve(ref name.Reference, options ...remote.Option) (image v1.Image, digest string, err error) {
	desc, err := remote.Get(ref, append(options, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}), remote.WithUserAgent("hyperkube"))...)
	if err != nil {
		return nil, "", err
	}
	if desc.MediaType.IsSchema1() {
		return nil, "", fmt.Errorf("media type %q is no longer supported, please rebuild the image with a manifest of schema version 2 or of OCI", desc.MediaType)
	}
	image, err = desc.Image()
	if err != nil && desc.MediaType.IsIndex() {
		return nil, "", fmt.Errorf("no match for platform linux/%s in manifest %s: %w", runtime.GOARCH, desc.Digest, err)
	}
	if err != nil {
		return nil, "", err
	}
	manifest, err := image.Manifest()
	if err != nil {
		return nil, "", err
	}
	if manifest.Config.Size > maxDocument {
		return nil, "", fmt.Errorf("the image's configuration of %d bytes is too large", manifest.Config.Size)
	}
	return image, desc.Digest.String(), nil
}

// blobsOf returns the layers of an image, and how many bytes they are together.
func blobsOf(image v1.Image, normal string) (blobs []blob, total uint64, err error) {
	layers, err := image.Layers()
	if err != nil {
		return nil, 0, explain(err, normal)
	}
	for _, layer := range layers {
		size, err := layer.Size()
		if err != nil {
			return nil, 0, explain(err, normal)
		}
		total += uint64(max(size, 0))
		blobs = append(blobs, func(context.Context) (io.ReadCloser, error) {
			r, err := layer.Compressed()
			if err != nil {
				return nil, explain(err, normal)
			}
			return r, nil
		})
	}
	return blobs, total, nil
}

// stallTime is how long a registry may send nothing in the middle of an
// answer.
const stallTime = 2 * time.Minute

var errStalled = fmt.Errorf("the registry sent nothing for %s", stallTime)

// guarded calls registries and trusts none of them: documents are bounded, and
// one that falls silent is not waited for.
type guarded struct {
	http.RoundTripper
	cancel context.CancelCauseFunc
}

// RoundTrip implements http.RoundTripper.
func (g *guarded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := g.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body := &guardedBody{ReadCloser: resp.Body, left: math.MaxInt64}
	if !strings.Contains(r.URL.Path, "/blobs/") && resp.StatusCode < 300 {
		body.left = maxDocument
	}
	body.timer = time.AfterFunc(stallTime, func() { g.cancel(errStalled) })
	body.timer.Stop() // until it is read
	resp.Body = body
	return resp, nil
}

type guardedBody struct {
	io.ReadCloser
	left  int64
	timer *time.Timer
}

func (b *guardedBody) Read(p []byte) (int, error) {
	// Only the registry's time counts, not that of who unpacks what came before.
	b.timer.Reset(stallTime)
	n, err := b.ReadCloser.Read(p)
	b.timer.Stop()
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("the registry's answer is larger than %d bytes", maxDocument)
	}
	return n, err
}

func (b *guardedBody) Close() error {
	b.timer.Stop()
	return b.ReadCloser.Close()
}

// explain puts a registry's answer into the words that users know.
func explain(err error, normal string) error {
	if answer, ok := errors.AsType[*transport.Error](err); ok {
		switch answer.StatusCode {
		case http.StatusNotFound:
			return fmt.Errorf("%s: %w", normal, ErrNotFound)
		case http.StatusUnauthorized, http.StatusForbidden:
			return fmt.Errorf("pull access denied, repository does not exist or may require authorization: server message: %s: %w", reason(answer), ErrUnauthorized)
		}
		return fmt.Errorf("unexpected status code %d: %w", answer.StatusCode, err)
	}
	if _, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("failed to do request: %w", err)
	}
	return err
}

func reason(answer *transport.Error) string {
	for _, d := range answer.Errors {
		if d.Code != "" {
			return strings.ToLower(string(d.Code))
		}
	}
	return strings.ToLower(http.StatusText(answer.StatusCode))
}
