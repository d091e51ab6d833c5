package dns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
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
	// upstreams are the name servers, as host:port, for all names outside the stub domains. If
	// empty, the name servers of the node are used.
	upstreams []string
	// stubs maps a stub domain to its name servers. Keys are lower case and end with a dot.
	stubs map[string][]string
}

// keyUpstreams and keyStubs are the keys of the ConfigMap kube-dns, which are the names of the files in its volume.
//
// https://kubernetes.io/docs/tasks/administer-cluster/dns-custom-nameservers/
const (
	keyUpstreams = "upstreamNameservers" // JSON list of addresses
	keyStubs     = "stubDomains"         // JSON map from domain to list of addresses
)

// readCustom reads the files of the ConfigMap kube-dns in dir. Missing files are ignored, and
// invalid ones are an error.
func readCustom(dir string) (*customConfig, error) {
	var upstreams []string
	stubs := map[string][]string{}
	for name, into := range map[string]any{keyUpstreams: &upstreams, keyStubs: &stubs} {
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
	c := &customConfig{stubs: map[string][]string{}}
	var err error
	if c.upstreams, err = addresses(upstreams); err != nil {
		return nil, fmt.Errorf("%s: %w", keyUpstreams, err)
	}
	for domain, list := range stubs {
		if _, ok := dns.IsDomainName(domain); !ok || domain == "" || len(list) == 0 {
			return nil, fmt.Errorf("%s: %q is not a domain name or has no name servers", keyStubs, domain)
		}
		if c.stubs[dns.Fqdn(strings.ToLower(domain))], err = addresses(list); err != nil {
			return nil, fmt.Errorf("%s of %s: %w", keyStubs, domain, err)
		}
	}
	return c, nil
}

// addresses returns texts, which are IP addresses with an optional port, in the form host:port. The default
// port is 53. It returns an error if one of them is neither.
func addresses(texts []string) ([]string, error) {
	var out []string
	for _, text := range texts {
		if addr, err := netip.ParseAddr(text); err == nil {
			text = net.JoinHostPort(addr.String(), "53")
		} else if _, err := netip.ParseAddrPort(text); err != nil {
			return nil, fmt.Errorf("%q is not an IP address or an IP address with port", text)
		}
		out = append(out, text)
	}
	return out, nil
}

// equal reports whether two configurations are equal. Nil equals an empty configuration.
func (c *customConfig) equal(o *customConfig) bool {
	if c == nil || o == nil {
		c, o = c.orEmpty(), o.orEmpty()
	}
	return slices.Equal(c.upstreams, o.upstreams) && maps.EqualFunc(c.stubs, o.stubs, slices.Equal)
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
func (c *customConfig) servers(name string, nodeServers []string) []string {
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
	s.forward.custom.Store(c)
	s.forward.cache.reset()
	s.cfg.Log.Info("custom name server configuration of the ConfigMap kube-dns loaded, it is in effect now", "directory", s.cfg.CustomDir, "upstreams", c.upstreams, "stubDomains", c.stubs)
}
