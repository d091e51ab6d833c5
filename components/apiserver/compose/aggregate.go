package compose

import (
	"crypto/tls"
	"fmt"

	"hyperkube/components/apiserver/aggregation"
)

// aggregate creates the aggregator, which proxies requests for the APIs of other servers, and the publisher of the
// authentication configuration that these servers read. New calls it. It returns an error if the client certificate
// for other servers cannot be read.
func (s *Server) aggregate() error {
	cfg, reg := s.cfg, s.server.Registry()
	var cert func() (*tls.Certificate, error)
	var err error
	if cfg.ProxyCertFile != "" || cfg.ProxyKeyFile != "" {
		if cert, err = aggregation.ClientCert(cfg.ProxyCertFile, cfg.ProxyKeyFile); err != nil {
			return err
		}
	}
	own := s.ClientConfig("system:apiserver", "system:masters")
	own.UserAgent = "kube-apiserver"
	s.aggregator, err = aggregation.New(aggregation.Config{
		Registry: reg, REST: own,
		ClientCert: cert, EndpointRouting: cfg.EndpointRouting, ProxyFailed: s.server.Metrics().ProxyFailed, Local: cfg.LocalAPIs, Log: cfg.Log,
	})
	if err != nil {
		return err
	}
	for _, c := range s.aggregator.Collectors() {
		if err := s.server.Metrics().Registry().Register(c); err != nil {
			return fmt.Errorf("registering aggregation metrics: %w", err)
		}
	}
	s.authConfigPublisher, err = aggregation.NewAuthConfigPublisher(aggregation.AuthConfigPublisherConfig{
		Registry: reg, Kube: s.ownClients.Kube, Bundles: s.authn.CABundles, Changed: s.authn.Changed(),
		FrontProxy: cfg.FrontProxy, Log: cfg.Log,
	})
	return err
}
