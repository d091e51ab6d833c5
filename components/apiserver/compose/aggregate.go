package compose

import (
	"crypto/tls"
	"fmt"

	"hyperkube/components/apiserver/aggregation"
)

// aggregate makes what knows the APIs of other servers, and what tells these
// whom to trust.
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
	s.others, err = aggregation.New(aggregation.Config{
		Registry: reg, REST: own,
		ClientCert: cert, EndpointRouting: cfg.EndpointRouting, Lost: s.server.Metrics().Lost, Log: cfg.Log,
	})
	if err != nil {
		return err
	}
	for _, c := range s.others.Collectors() {
		if err := s.server.Metrics().Registry().Register(c); err != nil {
			return fmt.Errorf("registering metrics of other servers: %w", err)
		}
	}
	s.trust, err = aggregation.NewTrust(aggregation.TrustConfig{
		Registry: reg, Kube: s.own.Kube, Bundles: s.authn.CABundles, Changed: s.authn.Changed(),
		FrontProxy: cfg.FrontProxy, Log: cfg.Log,
	})
	return err
}
