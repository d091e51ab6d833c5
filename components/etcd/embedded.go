package etcd

import (
	"io"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
)

// Flags are flags of etcd that change the configuration of a member in the process of another program. That program determines the
// data directory, the URLs and certificates of clients and peers, the membership and the log, so it must refuse the flags for these.
type Flags struct{ options options }

// NewFlags adds the flags of `hyperkube etcd`, except for --config-file, to set, which the caller parses.
func NewFlags(set *pflag.FlagSet) *Flags {
	f := &Flags{}
	f.options.addFlags(set)
	return f
}

// Validate returns an error if the parsed flags have an invalid value, as New would for a member with these flags.
func (f *Flags) Validate() error {
	_, err := f.config()
	return err
}

// config returns the configuration that the flags specify, with their defaults, or an error if it is invalid.
func (f *Flags) config() (Config, error) {
	cfg, err := f.options.config(io.Discard)
	if err == nil {
		_, err = cfg.embed(zap.NewNop())
	}
	return cfg, err
}

// Apply returns the configuration of the flags, with their defaults, in which the data directory, name, URLs, TLS
// files, initial cluster, log and DiskFull are those of base. NoSync is set if either has it. It returns an error if
// a flag is invalid.
func (f *Flags) Apply(base Config) (Config, error) {
	cfg, err := f.config()
	if err != nil {
		return cfg, err
	}
	cfg.DataDir, cfg.Name, cfg.NoSync = base.DataDir, base.Name, cfg.NoSync || base.NoSync
	cfg.ListenClientURLs, cfg.AdvertiseClientURLs, cfg.ListenClientHTTPURLs = base.ListenClientURLs, base.AdvertiseClientURLs, base.ListenClientHTTPURLs
	cfg.ListenPeerURLs, cfg.AdvertisePeerURLs = base.ListenPeerURLs, base.AdvertisePeerURLs
	cfg.ClientTLS, cfg.PeerTLS = base.ClientTLS, base.PeerTLS
	cfg.InitialCluster, cfg.InitialClusterState, cfg.InitialClusterToken = base.InitialCluster, base.InitialClusterState, base.InitialClusterToken
	cfg.Log, cfg.DiskFull = base.Log, base.DiskFull
	return cfg, nil
}
