package linearizability

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/wal"

	"hyperkube/components/apiserver/authn"
	"hyperkube/components/apiserver/compose"
	"hyperkube/components/etcd"
	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/credentials/tokens"
)

// childEnv is the environment variable with the child of a process.
const childEnv = "LINEARIZABILITY_TEST_CHILD"

// child is the configuration of a child process: an etcd member, an API server, or both, as in the
// main process of `hyperkube up`.
type child struct {
	// Name of the member.
	Name string
	// Data is the directory of the member. Empty means that there is no member.
	Data                          string
	ClientURL, PeerURL, Bootstrap string
	// Etcd are the client URLs for an API server without a member.
	Etcd []string
	// API is the address of the API server. Empty means that there is none.
	API string
	// PKI is the directory of the certificates.
	PKI string
}

// runChild runs the processes of a configuration until one of them fails, and returns the exit code.
func runChild(text string) int {
	var c child
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = c.run(context.Background())
	}
	fmt.Fprintln(os.Stderr, "exit:", err)
	return 1
}

func (c child) run(ctx context.Context) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	failed := make(chan error, 2)
	var client *clientv3.Client
	if c.Data != "" {
		// A small segment is full after a few hundred writes, so that the log also needs new files.
		wal.SegmentSizeBytes = 1 << 20
		member, err := etcd.New(etcd.Config{
			DataDir: c.Data, Name: c.Name, InitialCluster: c.Bootstrap,
			ListenClientURLs: []string{c.ClientURL}, ListenPeerURLs: []string{c.PeerURL}, Log: log,
		})
		if err != nil {
			return err
		}
		go func() { failed <- cmp.Or(member.Run(ctx), errors.New("etcd returned")) }()
		select {
		case <-member.Ready():
			client = member.Client()
		case err := <-failed:
			return err
		}
	}
	if c.API != "" {
		if client == nil {
			var err error
			if client, err = etcd.Dial(etcd.DialConfig{Servers: c.Etcd, Log: log}); err != nil {
				return err
			}
		}
		server, err := c.apiServer(client, log)
		if err != nil {
			return err
		}
		go func() { failed <- cmp.Or(server.Run(ctx), errors.New("the API server returned")) }()
	}
	return <-failed
}

func (c child) apiServer(client *clientv3.Client, log *slog.Logger) (*compose.Server, error) {
	set, err := pki.Load(c.PKI)
	if err != nil {
		return nil, err
	}
	keys, err := tokens.LoadKeySet(set.ServiceAccountPubFile)
	if err != nil {
		return nil, err
	}
	address, err := netip.ParseAddrPort(c.API)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", c.API)
	if err != nil {
		return nil, err
	}
	return compose.New(compose.Config{
		Etcd: client, Shared: c.Data == "", Listener: listener, CertFile: set.APIServer.CertFile, KeyFile: set.APIServer.KeyFile,
		FrontProxyCAFile: set.FrontProxyCA.CertFile, FrontProxy: authn.FrontProxy{AllowedNames: []string{"front-proxy-client"}},
		ClientCAFile: set.CA.CertFile, Issuers: []string{"https://kubernetes.default.svc"}, Key: set.ServiceAccountKey, Keys: keys,
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, Advertise: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), address.Port()),
		// The test needs the complete log.
		CompactionInterval: -1, Log: log,
	})
}
