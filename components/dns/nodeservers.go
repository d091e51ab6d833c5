package dns

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"hyperkube/internal/base/configfile"
)

// followNodeServers uses the name servers in the file NodeResolvConf, and those of each later version of the file, until
// ctx is canceled. The resolv.conf of a pod never changes, but the node may get other name servers, for example in another
// network. Without the directory of the file, for example if the container runtime of the node is not hyperkube's, the name
// servers of the pod's resolv.conf are used.
func (s *Server) followNodeServers(ctx context.Context) {
	err := configfile.Follow(ctx, s.cfg.NodeResolvConf, s.cfg.Log, s.loadNodeServers)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.cfg.Log.Warn("watching the name servers of the node failed; changes of them take effect only at the next start of the DNS server", "file", s.cfg.NodeResolvConf, "err", err)
	}
}

// loadNodeServers reads NodeResolvConf and, if the name servers have changed, uses them and clears the cache. It ignores a
// missing file, and one without usable name servers.
func (s *Server) loadNodeServers() {
	servers, err := readUpstreams(s.cfg.NodeResolvConf, s.cfg.NotUpstream)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.cfg.Log.Warn("reading the name servers of the node failed; the previous ones stay in use, reading the file again when it changes", "file", s.cfg.NodeResolvConf, "err", err)
		}
		return
	}
	if len(servers) == 0 || slices.Equal(servers, s.forward.nodeServers()) {
		return
	}
	s.forward.node.Store(&servers)
	s.forward.cache.reset()
	s.cfg.Log.Info("name servers of the node changed, queries are forwarded to the new ones", "upstreams", servers)
}
