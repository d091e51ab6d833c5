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

	"github.com/fsnotify/fsnotify"
	"github.com/miekg/dns"
)

// custom is which name servers are asked instead of the node's own.
type custom struct {
	// upstreams, host:port, are asked for everything; none: the node's own are.
	upstreams []string
	// stubs are the name servers of domains, by their names: lower-case, ending in
	// a dot.
	stubs map[string][]string
}

// Keys of the ConfigMap kube-dns, as files of its volume.
// https://kubernetes.io/docs/tasks/administer-cluster/dns-custom-nameservers/
const (
	keyUpstreams = "upstreamNameservers" // a list of addresses
	keyStubs     = "stubDomains"         // such lists by domain
)

// readCustom reads what the files of a folder say, which may be missing.
func readCustom(dir string) (*custom, error) {
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
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
	}
	c := &custom{stubs: map[string][]string{}}
	var err error
	if c.upstreams, err = addresses(upstreams); err != nil {
		return nil, fmt.Errorf("%s: %w", keyUpstreams, err)
	}
	for domain, list := range stubs {
		if _, ok := dns.IsDomainName(domain); !ok || domain == "" || len(list) == 0 {
			return nil, fmt.Errorf("%s: %q is no domain name, or has no name server", keyStubs, domain)
		}
		if c.stubs[dns.Fqdn(strings.ToLower(domain))], err = addresses(list); err != nil {
			return nil, fmt.Errorf("%s of %s: %w", keyStubs, domain, err)
		}
	}
	return c, nil
}

// addresses gives IP addresses the port of DNS, where they have none.
func addresses(texts []string) ([]string, error) {
	var out []string
	for _, text := range texts {
		if addr, err := netip.ParseAddr(text); err == nil {
			text = net.JoinHostPort(addr.String(), "53")
		} else if _, err := netip.ParseAddrPort(text); err != nil {
			return nil, fmt.Errorf("%q is no IP address, nor one with a port", text)
		}
		out = append(out, text)
	}
	return out, nil
}

// equal tells whether two say the same; nil says nothing.
func (c *custom) equal(o *custom) bool {
	if c == nil || o == nil {
		c, o = c.orNothing(), o.orNothing()
	}
	return slices.Equal(c.upstreams, o.upstreams) && maps.EqualFunc(c.stubs, o.stubs, slices.Equal)
}

func (c *custom) orNothing() *custom {
	if c == nil {
		return &custom{}
	}
	return c
}

// servers returns who is asked about a name: those of the stub domain that is nearest
// to it, else those for everything; own are the node's.
func (c *custom) servers(name string, own []string) []string {
	if c == nil {
		return own
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
	return own
}

// followCustom brings what the folder says into force whenever it changes, until ctx
// ends. What cannot be read changes nothing.
func (s *Server) followCustom(ctx context.Context) {
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		err = watcher.Add(s.cfg.CustomDir)
	}
	s.takeCustom()
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.cfg.Log.Warn("changes of the name servers to ask are not seen", "err", err)
		}
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-watcher.Events:
			if !ok {
				return
			}
		case err, ok := <-watcher.Errors:
			if !ok {
				return
			}
			s.cfg.Log.Warn("a change of the name servers to ask was missed", "err", err)
		}
		s.takeCustom()
	}
}

// takeCustom brings into force what the folder says now.
func (s *Server) takeCustom() {
	c, err := readCustom(s.cfg.CustomDir)
	if err != nil {
		s.cfg.Log.Error("the name servers to ask stay as they were", "err", err)
		return
	}
	if s.forward.custom.Load().equal(c) {
		return
	}
	s.forward.custom.Store(c)
	s.forward.memory.forget()
	s.cfg.Log.Info("name servers to ask", "upstreams", c.upstreams, "stubDomains", c.stubs)
}
