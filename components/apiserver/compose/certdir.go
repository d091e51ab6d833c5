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

// defaultCertDir is the default of --cert-dir, where the serving certificate is if --tls-cert-file
// is not given.
const defaultCertDir = "/var/run/kubernetes"

// certificate sets the files of the serving certificate in cfg: those of --tls-cert-file and --tls-private-key-file,
// or else apiserver.crt and apiserver.key in --cert-dir. If neither of these exists, it generates a self-signed
// certificate there. Controller test environments (envtest) rely on that. It returns an error if only one of the
// flags is set, only one of the files exists, or they cannot be written.
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
		ips = append(ips, net.IP(firstAddress(cfg.ServiceCIDRs[0]).AsSlice()))
	}
	if bind, err := netip.ParseAddr(o.bind); err == nil && !bind.IsUnspecified() {
		ips = append(ips, net.IP(bind.AsSlice()))
	} else {
		names = append(names, "localhost")
	}
	cert, key, err := certutil.GenerateSelfSignedCertKey(cfg.Advertise.Addr().String(), ips, names)
	if err != nil {
		return fmt.Errorf("generating serving certificate: %w", err)
	}
	if err := keyutil.WriteKey(cfg.KeyFile, key); err != nil {
		return fmt.Errorf("writing key of serving certificate: %w", err)
	}
	if err := certutil.WriteCert(cfg.CertFile, cert); err != nil {
		return fmt.Errorf("writing serving certificate: %w", err)
	}
	return nil
}
