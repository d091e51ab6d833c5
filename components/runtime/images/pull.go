package images

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"sigs.k8s.io/yaml"
)

// Registries configures the access to registries. The file format is that of k3s' registries.yaml.
type Registries struct {
	// Mirrors maps the host of a registry to its mirrors, which are tried in order before the
	// registry itself. "*" applies to hosts without an entry.
	Mirrors map[string]Mirror `json:"mirrors,omitempty"`
	// Configs maps the host of a registry or mirror, with its port if it has one, to its
	// configuration.
	Configs map[string]RegistryConfig `json:"configs,omitempty"`
}

// Mirror lists the mirrors of a registry.
type Mirror struct {
	// Endpoints are URLs such as "https://mirror.example" or "http://…".
	Endpoints []string `json:"endpoint"`
	// Rewrite maps regular expressions to replacements for the repository, without registry and tag,
	// for example "^library/(.*)" to "mirrored/$1". The first expression in alphabetical order that
	// changes the repository applies. Pulls from the registry itself are not changed.
	Rewrite map[string]string `json:"rewrite,omitempty"`
}

// rewriteRule is an entry of Mirror.Rewrite with its regular expression compiled.
type rewriteRule struct {
	pattern     *regexp.Regexp
	replacement string
}

// rewriteRules compiles Rewrite, in alphabetical order of the expressions. It returns an error if an expression is
// invalid.
func (m Mirror) rewriteRules() ([]rewriteRule, error) {
	var rules []rewriteRule
	for _, pattern := range slices.Sorted(maps.Keys(m.Rewrite)) {
		compiled, err := regexp.Compile(pattern)
		if err != nil {
			return nil, fmt.Errorf("invalid rewrite pattern %q: %w", pattern, err)
		}
		rules = append(rules, rewriteRule{compiled, m.Rewrite[pattern]})
	}
	return rules, nil
}

// RegistryConfig configures the access to one registry.
type RegistryConfig struct {
	Auth *Auth      `json:"auth,omitempty"`
	TLS  *TLSConfig `json:"tls,omitempty"`
	// PlainHTTP disables TLS.
	PlainHTTP bool `json:"plain_http,omitempty"`
}

// TLSConfig contains the TLS settings for a registry.
type TLSConfig struct {
	CAFile             string `json:"ca_file,omitempty"`
	CertFile           string `json:"cert_file,omitempty"`
	KeyFile            string `json:"key_file,omitempty"`
	InsecureSkipVerify bool   `json:"insecure_skip_verify,omitempty"`
}

// Auth contains credentials for a registry. The zero value is anonymous.
type Auth struct {
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	Auth          string `json:"auth,omitempty"` // base64 of "username:password"
	IdentityToken string `json:"identity_token,omitempty"`
	RegistryToken string `json:"registry_token,omitempty"`
}

// LoadRegistries reads the registry configuration from a YAML or JSON file. It returns the zero value if file is empty
// or does not exist. Unknown fields and invalid expressions are an error.
func LoadRegistries(file string) (Registries, error) {
	if file == "" {
		return Registries{}, nil
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return Registries{}, nil
	}
	var r Registries
	if err == nil {
		r, err = parseRegistries(data)
	}
	if err != nil {
		return r, fmt.Errorf("reading registry configuration %s: %w", file, err)
	}
	return r, nil
}

// parseRegistries parses and validates the content of a registry configuration file.
func parseRegistries(data []byte) (Registries, error) {
	var r Registries
	if err := yaml.UnmarshalStrict(data, &r); err != nil {
		return Registries{}, err
	}
	for _, host := range slices.Sorted(maps.Keys(r.Mirrors)) {
		if _, err := r.Mirrors[host].rewriteRules(); err != nil {
			return Registries{}, fmt.Errorf("mirror of %s: %w", host, err)
		}
	}
	return r, nil
}

// authenticator converts the credentials for the registry client; empty ones become anonymous access. The field
// Auth counts only without a user name. It returns an error if it is not base64 of "username:password".
func (a Auth) authenticator() (authn.Authenticator, error) {
	c := authn.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken}
	if a.Auth != "" && c.Username == "" {
		plain, err := base64.StdEncoding.DecodeString(a.Auth)
		if err != nil {
			return nil, fmt.Errorf("decoding registry credentials: %w", err)
		}
		user, password, ok := strings.Cut(string(plain), ":")
		if !ok {
			return nil, errors.New("registry credentials have no colon")
		}
		c.Username, c.Password = user, strings.TrimRight(password, "\x00")
	}
	if c == (authn.AuthConfig{}) {
		return authn.Anonymous, nil
	}
	return authn.FromConfig(c), nil
}

// MatchesServer reports whether credentials for server may be sent to the registry of the image ref. server is
// a registry address as in Docker's configuration file; an empty server matches all registries. Otherwise it
// returns false for an invalid ref.
func MatchesServer(ref, server string) bool {
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

// endpoint is a registry or mirror from which an image can be pulled.
type endpoint struct {
	registry string // host, with port if it has one
	insecure bool   // plain HTTP
	prefix   string // path prefix of the repository
	mirror   bool
	rewrite  []rewriteRule
}

// endpoints returns the endpoints for images of the registry host, in the order to try them: its mirrors, or
// else those of "*", then the registry itself. It returns an error if the configuration of the mirrors is not
// valid.
func (r Registries) endpoints(host string) ([]endpoint, error) {
	mirror, ok := r.Mirrors[host]
	if !ok {
		mirror = r.Mirrors["*"]
	}
	rewrite, err := mirror.rewriteRules()
	if err != nil {
		return nil, fmt.Errorf("mirror of %s: %w", host, err)
	}
	var list []endpoint
	for _, e := range mirror.Endpoints {
		u, err := url.Parse(e)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("invalid mirror endpoint %q of %s", e, host)
		}
		prefix := strings.Trim(strings.TrimPrefix(strings.Trim(u.Path, "/"), "v2"), "/")
		list = append(list, endpoint{registry: u.Host, insecure: u.Scheme == "http", prefix: prefix, mirror: true, rewrite: rewrite})
	}
	return append(list, endpoint{registry: host, insecure: r.Configs[host].PlainHTTP}), nil
}

// transport returns an HTTP transport for requests to a host with its TLS settings. It returns an error if a
// configured certificate cannot be read. The caller must close its idle connections.
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
	t.TLSClientConfig = &tls.Config{InsecureSkipVerify: c.InsecureSkipVerify} //nolint:gosec // configured by the administrator
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading CA of %s: %w", host, err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("no certificate in CA file of %s", host)
		}
		t.TLSClientConfig.RootCAs = pool
	}
	if c.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("reading client certificate for %s: %w", host, err)
		}
		t.TLSClientConfig.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

// Pull pulls the image ref from a mirror or its registry and adds it to the store. auth are the credentials of the pod;
// if they are empty, those in registries are used. Mirrors get only their own credentials. Error messages are those of
// common container runtimes. An error wraps ErrNotFound or ErrUnauthorized if the registry has answered so. report, which
// may be nil, receives the progress, which starts again with each mirror.
func (s *Store) Pull(ctx context.Context, ref string, auth Auth, registries Registries, report Report) (*Image, error) {
	normal, err := Normalize(ref)
	if err != nil {
		return nil, err
	}
	image, err := s.pull(ctx, normal, auth, registries, report)
	if err != nil {
		return nil, fmt.Errorf("failed to pull and unpack image %q: %w", normal, err)
	}
	return image, nil
}

// pull implements Pull for a normalized reference. It tries the endpoints in order until one succeeds or ctx is
// done, and returns the error of the last one.
func (s *Store) pull(ctx context.Context, normal string, auth Auth, registries Registries, report Report) (*Image, error) {
	host, _, _ := strings.Cut(normal, "/")
	endpoints, err := registries.endpoints(host)
	if err != nil {
		return nil, err
	}
	var failed error
	for _, e := range endpoints {
		image, err := s.pullFrom(ctx, e, normal, auth, registries, report)
		if err == nil || ctx.Err() != nil || !e.mirror {
			return image, err
		}
		failed = err
		s.log.Warn("pulling image from registry mirror failed; trying the next mirror or the registry now", "image", normal, "mirror", e.registry, "err", failed)
	}
	return nil, failed
}

// pullFrom pulls an image from one endpoint and adds it to the store under its normalized reference. The
// credentials auth are never sent to a mirror; those in the configuration of the endpoint's host are used for a
// mirror, and for the registry if auth is empty.
func (s *Store) pullFrom(ctx context.Context, e endpoint, normal string, auth Auth, registries Registries, report Report) (*Image, error) {
	ref, err := e.reference(normal)
	if err != nil {
		return nil, err
	}
	if c := registries.Configs[e.registry].Auth; c != nil && (e.mirror || auth == Auth{}) {
		auth = *c
	} else if e.mirror {
		// Do not send the credentials of the registry to a mirror.
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
	image, digest, err := resolve(ref, remote.WithContext(ctx), remote.WithAuth(login), remote.WithTransport(&guardedTransport{base, cancel}))
	if err != nil {
		return nil, fmt.Errorf("failed to resolve reference %q: %w", normal, registryError(err, normal))
	}
	config, err := image.RawConfigFile()
	if err != nil {
		return nil, registryError(err, normal)
	}
	record := Image{Digests: []string{repository(normal) + "@" + digest}, Size: uint64(len(config))}
	if !isDigest(normal) {
		record.Tags = []string{normal}
	}
	blobs, sizes, err := blobsOf(image, normal)
	if err != nil {
		return nil, err
	}
	var size uint64
	for _, n := range sizes {
		size += uint64(n)
	}
	if report != nil {
		progress := &meter{report: report, total: int64(size)}
		progress.add(s.presentSize(image, sizes))
		for i := range blobs {
			blobs[i] = progress.wrap(blobs[i])
		}
	}
	record.Size += size
	done, err := s.assemble(ctx, config, blobs, record)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errStalled) {
		err = cause
	}
	return done, err
}

// reference returns the reference under which the endpoint has the image: with its host and path prefix, and
// for a mirror with the repository rewritten by the first rule that changes it.
func (e endpoint) reference(normal string) (name.Reference, error) {
	var options []name.Option
	if e.insecure {
		options = append(options, name.Insecure)
	}
	_, path, _ := strings.Cut(normal, "/")
	repository := path[:len(path)-len(suffix(path))]
	for _, r := range e.rewrite {
		if changed := r.pattern.ReplaceAllString(repository, r.replacement); changed != repository {
			path = changed + suffix(path)
			break
		}
	}
	if e.prefix != "" {
		path = e.prefix + "/" + path
	}
	ref, err := name.ParseReference(e.registry+"/"+path, options...)
	if err != nil {
		return nil, fmt.Errorf("failed to parse image reference %q: %w", normal, err)
	}
	return ref, nil
}

// suffix returns the tag or digest of a repository path, with its separator.
func suffix(path string) string {
	at := strings.IndexByte(path, '@')
	if at < 0 {
		at = strings.IndexByte(path, ':')
	}
	if at < 0 {
		return ""
	}
	return path[at:]
}

// resolve requests the manifest of the image for this platform, and returns the image and the digest of the manifest or
// index that the reference refers to. Layers are requested later, when they are read.
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
	if manifest.Config.Size > maxDocumentSize {
		return nil, "", fmt.Errorf("image configuration of %d bytes is too large", manifest.Config.Size)
	}
	return image, desc.Digest.String(), nil
}

// presentSize returns the total of the sizes of the layers that the store contains. sizes are those of the layers of the
// image. It returns 0 if the image configuration is invalid, which fails the pull later.
func (s *Store) presentSize(image v1.Image, sizes []int64) (total int64) {
	config, err := image.ConfigFile()
	if err != nil || len(config.RootFS.DiffIDs) != len(sizes) {
		return 0
	}
	for i, id := range config.RootFS.DiffIDs {
		if s.layers.has(layerName(id.String())) {
			total += sizes[i]
		}
	}
	return total
}

// blobsOf returns the layers of an image and their compressed sizes in bytes. normal is the image reference for errors.
func blobsOf(image v1.Image, normal string) (blobs []blob, sizes []int64, err error) {
	layers, err := image.Layers()
	if err != nil {
		return nil, nil, registryError(err, normal)
	}
	for _, layer := range layers {
		size, err := layer.Size()
		if err != nil {
			return nil, nil, registryError(err, normal)
		}
		sizes = append(sizes, max(size, 0))
		blobs = append(blobs, func(context.Context) (io.ReadCloser, error) {
			r, err := layer.Compressed()
			if err != nil {
				return nil, registryError(err, normal)
			}
			return r, nil
		})
	}
	return blobs, sizes, nil
}

// stallTimeout is how long a registry may send no data within a response before the pull is canceled.
const stallTimeout = 2 * time.Minute

// errStalled is the cause of the cancellation when a registry has sent no data for stallTimeout.
var errStalled = fmt.Errorf("registry sent no data for %s", stallTimeout)

// guardedTransport protects the runtime from untrusted registries: responses other than layers are limited to
// maxDocumentSize, and cancel is called if a registry sends no data for stallTimeout.
type guardedTransport struct {
	http.RoundTripper
	cancel context.CancelCauseFunc
}

// RoundTrip sends the request and returns a response whose body is guarded: a read during which no data arrives
// for stallTimeout cancels the pull, and a manifest that is longer than maxDocumentSize is an error.
func (g *guardedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := g.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body := &guardedBody{ReadCloser: resp.Body, left: math.MaxInt64}
	if !strings.Contains(r.URL.Path, "/blobs/") && resp.StatusCode < 300 {
		body.left = maxDocumentSize
	}
	body.timer = time.AfterFunc(stallTimeout, func() { g.cancel(errStalled) })
	body.timer.Stop() // until the body is read
	resp.Body = body
	return resp, nil
}

// guardedBody is the body of a guarded response. left is the number of bytes that may still be read.
type guardedBody struct {
	io.ReadCloser
	left  int64
	timer *time.Timer
}

func (b *guardedBody) Read(p []byte) (int, error) {
	// The timer runs only while waiting for the registry, not while the caller unpacks data.
	b.timer.Reset(stallTimeout)
	n, err := b.ReadCloser.Read(p)
	b.timer.Stop()
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("registry response is larger than %d bytes", maxDocumentSize)
	}
	return n, err
}

func (b *guardedBody) Close() error {
	b.timer.Stop()
	return b.ReadCloser.Close()
}

// registryError converts an error of the registry client to the messages of common container runtimes. It wraps
// ErrNotFound or ErrUnauthorized for the corresponding status codes. normal is the image reference.
func registryError(err error, normal string) error {
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

// reason returns the error code in the answer of a registry, or else the text of its status code, in lower case.
func reason(answer *transport.Error) string {
	for _, d := range answer.Errors {
		if d.Code != "" {
			return strings.ToLower(string(d.Code))
		}
	}
	return strings.ToLower(http.StatusText(answer.StatusCode))
}
