package node

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	kubeletconfig "hyperkube/components/kubelet/config"
	"hyperkube/components/kubelet/pod/dnsconf"
	"hyperkube/internal/base/configfile"
	"hyperkube/internal/host/atomicfile"
)

// nodeDNS copies the resolver configuration of the node to a file that the pods of the DNS server mount, whenever it
// changes. So the DNS server forwards queries to the name servers of the network that the node is in now; the resolv.conf of
// a pod never changes.
type nodeDNS struct {
	// source returns the path of the resolver configuration. It is nil if the kubelet has none.
	source func() string
	// watched are files whose changes may change the result of source or the content of that file.
	watched []string
	target  string
	log     *slog.Logger

	mu sync.Mutex // serializes copies
}

// newNodeDNS returns a nodeDNS that copies the resolver configuration of the kubelet to target.
func newNodeDNS(cfg kubeletconfig.DNS, target string, log *slog.Logger) *nodeDNS {
	d := &nodeDNS{target: target, log: log}
	switch {
	case cfg.NoResolvConf:
	case cfg.ResolvConf != "":
		d.source, d.watched = func() string { return cfg.ResolvConf }, []string{cfg.ResolvConf}
	default:
		d.source, d.watched = dnsconf.Upstream, dnsconf.UpstreamFiles()
	}
	return d
}

// Run copies the file now and after each change until ctx is done. Without a resolver configuration it only waits. It
// logs failures and always returns nil.
func (d *nodeDNS) Run(ctx context.Context) error {
	if d.source != nil {
		var following sync.WaitGroup
		for _, file := range d.watched {
			following.Go(func() {
				err := configfile.Follow(ctx, file, d.log, d.copy)
				if err != nil && !errors.Is(err, fs.ErrNotExist) { // without systemd-resolved its directory does not exist
					d.copy()
					d.log.Warn("watching the resolver configuration of the node failed; the cluster DNS does not follow changes of it, no retry until hyperkube restarts on this node", "file", file, "err", err)
				}
			})
		}
		following.Wait()
	}
	<-ctx.Done()
	return nil
}

// copy copies the resolver configuration if it differs from the copy. If the source does not exist, it keeps the copy.
func (d *nodeDNS) copy() {
	d.mu.Lock()
	defer d.mu.Unlock()
	data, err := os.ReadFile(d.source())
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		if old, readErr := os.ReadFile(d.target); readErr == nil && bytes.Equal(old, data) {
			return
		}
		if err = os.MkdirAll(filepath.Dir(d.target), 0o755); err == nil {
			err = atomicfile.Write(atomicfile.File{Path: d.target, Data: data, Mode: 0o644, SkipSync: true})
		}
	}
	if err != nil {
		d.log.Warn("copying the resolver configuration of the node failed; the cluster DNS uses the previous name servers, retrying when the configuration changes", "file", d.target, "err", err)
	}
}
