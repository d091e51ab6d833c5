package compose

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// defaultCertDir is where the serving certificate is without --tls-cert-file
// and --cert-dir.
const defaultCertDir = "/var/run/kubernetes"

// certificate names the serving certificate of cfg: that of --tls-cert-file,
// or else apiserver.crt and apiserver.key in --cert-dir, which are made,
// signed by nobody, where neither is there yet. Test environments of
// controllers start servers so.
func (o *options) certificate(cfg *Config) error {
	if o.certFile != "" || o.keyFile != "" {
		if o.certFile == "" || o.keyFile == "" {
			return errors.New("--tls-cert-file and --tls-private-key-file must be specified together")
		}
		return nil
	}
	dir := o.certDir
	cfg.CertFile, cfg.KeyFile = filepath.Join(dir, "apiserver.crt"), filepath.Join(dir, "apiserver.key")
	there, err := certutil.CanReadCertAndKey(cfg.CertFile, cfg.KeyFile)
	if err != nil {
		return fmt.Errorf("serving certificate in --cert-dir: %w", err)
	}
	if there {
		return nil
	}
	names := []string{"kubernetes.default.svc", "kubernetes.default", "kubernetes"}
	var ips []net.IP
	if len(cfg.ServiceCIDRs) > 0 {
		ips = append(ips, net.IP(firstOf(cfg.ServiceCIDRs[0]).AsSlice()))
	}
	if bind, err := netip.ParseAddr(o.bind); err == nil && !bind.IsUnspecified() {
		ips = append(ips, net.IP(bind.AsSlice()))
	} else {
		names = append(names, "localhost")
	}
	cert, key, err := certutil.GenerateSelfSignedCertKey(cfg.Advertise.Addr().String(), ips, names)
	if err != nil {
		return fmt.Errorf("making a serving certificate: %w", err)
	}
	if err := keyutil.WriteKey(cfg.KeyFile, key); err != nil {
		return fmt.Errorf("keeping the key of the serving certificate: %w", err)
	}
	if err := certutil.WriteCert(cfg.CertFile, cert); err != nil {
		return fmt.Errorf("keeping the serving certificate: %w", err)
	}
	return nil
}
