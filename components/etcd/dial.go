package etcd

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// DialConfig configures a client of an external etcd cluster.
type DialConfig struct {
	// Servers are the client URLs, e.g. https://10.0.0.1:2379.
	Servers []string
	// CAFile is the CA of the servers' certificates; if it is empty, the CAs of the system are used. CertFile and
	// KeyFile are the client certificate; either both or none are set. All are empty for plain http.
	CAFile, CertFile, KeyFile string
	// Log receives the client's warnings. Nil discards them.
	Log *slog.Logger
}

// keepaliveTime, keepaliveTimeout and dialTimeout are the timeouts of the client, as in upstream's API server: a
// connection without responses is probed after keepaliveTime and closed keepaliveTimeout later; dialTimeout limits
// connecting.
const (
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 10 * time.Second
	dialTimeout      = 20 * time.Second
)

// Dial creates a client of an external etcd cluster. It does not wait for a connection. It returns an error if there
// is no server, a URL is malformed, or a certificate file cannot be read. The certificate and key are read again for
// later connections, so that they can be renewed.
func Dial(cfg DialConfig) (*clientv3.Client, error) {
	if len(cfg.Servers) == 0 {
		return nil, errors.New("etcd: no servers to connect to")
	}
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return nil, errors.New("etcd: a client certificate needs both a certificate and a key file")
	}
	if _, err := parseURLs(cfg.Servers); err != nil {
		return nil, fmt.Errorf("etcd server: %w", err)
	}
	var tlsConfig *tls.Config
	if cfg.CAFile != "" || cfg.CertFile != "" {
		info := transport.TLSInfo{TrustedCAFile: cfg.CAFile, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile}
		var err error
		if tlsConfig, err = info.ClientConfig(); err != nil {
			return nil, fmt.Errorf("etcd client TLS: %w", err)
		}
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            cfg.Servers,
		TLS:                  tlsConfig,
		DialTimeout:          dialTimeout,
		DialKeepAliveTime:    keepaliveTime,
		DialKeepAliveTimeout: keepaliveTimeout,
		Logger:               zapLogger(cfg.Log, zap.WarnLevel, new(atomic.Bool), nil),
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to etcd: %w", err)
	}
	return client, nil
}
