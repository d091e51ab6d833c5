package dns

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"hyperkube/internal/base/configfile"
)

// customConfig is the parsed content of the kube-dns ConfigMap: name servers that override those of the
// node.
type customConfig struct {
	// upstreams are the name servers for all names outside the stub domains. If empty, the name servers of the node are
	// used.
	upstreams []nameServer
	// stubs maps a stub domain to its name servers. Keys are lower case and end with a dot.
	stubs map[string][]nameServer
	// rewrites are names that are looked up under another name.
	rewrites rewrites
	// ca contains the certificate authorities of name servers with TLS, in PEM format. If empty, those of the system are
	// used. roots is its content.
	ca    string
	roots *x509.CertPool
}

// keyUpstreams and the others are the keys of the ConfigMap kube-dns, which are the names of the files in its volume.
//
// https://kubernetes.io/docs/tasks/administer-cluster/dns-custom-nameservers/
const (
	keyUpstreams = "upstreamNameservers" // JSON list of addresses
	keyStubs     = "stubDomains"         // JSON map from domain to list of addresses
	keyRewrites  = "rewrites"            // JSON map from name to name; not a key of kube-dns
	keyCA        = "ca.crt"              // certificates in PEM format; not a key of kube-dns
)

// readCustom reads the files of the ConfigMap kube-dns in dir. Missing files are ignored, and
// invalid ones are an error.
func readCustom(dir string) (*customConfig, error) {
	var upstreams []string
	stubs, names := map[string][]string{}, map[string]string{}
	for name, into := range map[string]any{keyUpstreams: &upstreams, keyStubs: &stubs, keyRewrites: &names} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
		if err := json.Unmarshal(data, into); err != nil {
			return nil, fmt.Errorf("parsing %s: %w", name, err)
		}
	}
	c := &customConfig{stubs: map[string][]nameServer{}}
	var err error
	if c.rewrites, err = parseRewrites(names); err != nil {
		return nil, fmt.Errorf("%s: %w", keyRewrites, err)
	}
	if err := c.readCA(filepath.Join(dir, keyCA)); err != nil {
		return nil, err
	}
	if c.upstreams, err = parseNameServers(upstreams); err != nil {
		return nil, fmt.Errorf("%s: %w", keyUpstreams, err)
	}
	for domain, list := range stubs {
		if _, ok := dns.IsDomainName(domain); !ok || domain == "" || len(list) == 0 {
			return nil, fmt.Errorf("%s: %q is not a domain name or has no name servers", keyStubs, domain)
		}
		if c.stubs[dns.Fqdn(strings.ToLower(domain))], err = parseNameServers(list); err != nil {
			return nil, fmt.Errorf("%s of %s: %w", keyStubs, domain, err)
		}
	}
	return c, nil
}

// readCA sets ca and roots from a file. It does nothing if the file does not exist, and returns an error if it contains no
// certificate.
func (c *customConfig) readCA(path string) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", keyCA, err)
	}
	c.ca, c.roots = string(data), x509.NewCertPool()
	if !c.roots.AppendCertsFromPEM(data) {
		return fmt.Errorf("%s: contains no certificate in PEM format", keyCA)
	}
	return nil
}

// equal reports whether two configurations are equal. Nil equals an empty configuration.
func (c *customConfig) equal(o *customConfig) bool {
	if c == nil || o == nil {
		c, o = c.orEmpty(), o.orEmpty()
	}
	return slices.Equal(c.upstreams, o.upstreams) && maps.Equal(c.rewrites, o.rewrites) && c.ca == o.ca && maps.EqualFunc(c.stubs, o.stubs, slices.Equal)
}

func (c *customConfig) orEmpty() *customConfig {
	if c == nil {
		return &customConfig{}
	}
	return c
}

// servers returns the name servers to which queries for name are forwarded: those of the longest
// matching stub domain, or else the custom upstreams, or else nodeServers, the name servers of the
// node.
func (c *customConfig) servers(name string, nodeServers []nameServer) []nameServer {
	if c == nil {
		return nodeServers
	}
	name = strings.ToLower(name)
	for at, end := 0, false; !end; at, end = dns.NextLabel(name, at) {
		if list, ok := c.stubs[name[at:]]; ok {
			return list
		}
	}
	if len(c.upstreams) > 0 {
		return c.upstreams
	}
	return nodeServers
}

// watchCustom loads the files in CustomDir and reloads them whenever the directory changes, until
// ctx is canceled. If the files are invalid, the previous configuration stays in effect.
func (s *Server) watchCustom(ctx context.Context) {
	err := configfile.Follow(ctx, filepath.Join(s.cfg.CustomDir, keyUpstreams), s.cfg.Log, s.loadCustom)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.loadCustom()
		s.cfg.Log.Warn("watching custom name server configuration failed; changes of the ConfigMap kube-dns take effect only at the next start of the DNS server", "directory", s.cfg.CustomDir, "err", err)
	}
}

// loadCustom reads the files in CustomDir and, if they are valid and have changed, applies them and
// clears the cache.
func (s *Server) loadCustom() {
	c, err := readCustom(s.cfg.CustomDir)
	if err != nil {
		s.cfg.Log.Error("custom name server configuration is invalid; the previous one stays in effect: correct the ConfigMap kube-dns, it is then loaded", "directory", s.cfg.CustomDir, "err", err)
		return
	}
	if s.forward.custom.Load().equal(c) {
		return
	}
	s.forward.setCustom(c)
	s.forward.cache.reset()
	s.cfg.Log.Info("custom name server configuration of the ConfigMap kube-dns loaded, it is in effect now", "directory", s.cfg.CustomDir, "upstreams", c.upstreams, "stubDomains", c.stubs, "rewrites", len(c.rewrites))
}
