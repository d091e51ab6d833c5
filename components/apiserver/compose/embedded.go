package compose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"

	"github.com/spf13/pflag"

	"hyperkube/components/apiserver/admission"
	"hyperkube/components/apiserver/audit"
	"hyperkube/components/apiserver/authn"
	"hyperkube/components/apiserver/authz"
	"hyperkube/internal/base/tracing"
	"hyperkube/internal/credentials/encryption"
)

// Flags are flags of kube-apiserver that change the configuration of an API server in the process of another program. That program
// determines etcd, the keys and certificates, the range of Service IPs and the log, so it must refuse the flags for these.
type Flags struct {
	options *options
	set     *pflag.FlagSet
}

// NewFlags adds the flags of kube-apiserver to set, which the caller parses.
func NewFlags(set *pflag.FlagSet) *Flags {
	o := newOptions()
	o.register(set)
	return &Flags{options: o, set: set}
}

// Validate returns the errors that can be detected before the cluster exists: invalid values, combinations of flags,
// and files of the user that cannot be read. It also refuses a loopback address, which pods cannot reach.
func (f *Flags) Validate() error {
	o := f.options
	cfg, err := o.settings()
	if err != nil {
		return err
	}
	errs := []error{admission.CheckNames(o.enable, o.disable)}
	if o.admissionConfig != "" {
		_, err := admission.LoadConfiguration(o.admissionConfig)
		errs = append(errs, err)
	}
	if o.audit.PolicyFile != "" {
		errs = append(errs, audit.CheckPolicy(o.audit.PolicyFile))
	}
	if o.encryptionReload && o.encryptionConfig == "" {
		errs = append(errs, errReloadWithoutFile)
	}
	if o.encryptionConfig != "" {
		errs = append(errs, encryption.Validate(encryption.Config{Path: o.encryptionConfig, Reload: o.encryptionReload}))
	}
	errs = append(errs, authz.ValidateFiles(cfg.AuthorizationConfigFile, cfg.PolicyFile))
	log := slog.New(slog.DiscardHandler)
	_, err = authn.New(authn.Config{TokenFile: o.tokenFile, Webhook: cfg.TokenWebhook, Log: log})
	errs = append(errs, err, authn.ValidateIssuers(authn.Config{ConfigFile: cfg.AuthenticationConfigFile, OIDC: cfg.OIDC, Issuers: o.issuers, Log: log}))
	if o.port < 1 || o.port > 65535 {
		errs = append(errs, fmt.Errorf("--secure-port: %d is not a valid port", o.port))
	}
	if _, err := parseAddr(o.advertise); err != nil {
		errs = append(errs, fmt.Errorf("--advertise-address: %w", err))
	}
	bind, err := parseAddr(o.bind)
	switch {
	case err != nil:
		errs = append(errs, fmt.Errorf("--bind-address: %w", err))
	case bind.IsLoopback():
		errs = append(errs, fmt.Errorf("--bind-address: %s: pods must reach the API server, so it cannot listen on a loopback address", bind))
	}
	return errors.Join(errs...)
}

// Apply returns the configuration of the flags. Settings that the program itself determines, and flags that are not
// set and whose default the program determines, have the values of base. It returns an error for invalid flags.
func (f *Flags) Apply(base Config) (Config, error) {
	cfg, err := f.options.settings()
	if err != nil {
		return cfg, err
	}
	cfg.Etcd, cfg.EtcdPrefix, cfg.Encryption = base.Etcd, base.EtcdPrefix, base.Encryption
	cfg.Listener, cfg.CertFile, cfg.KeyFile = base.Listener, base.CertFile, base.KeyFile
	cfg.ClientCAFile, cfg.FrontProxyCAFile = base.ClientCAFile, base.FrontProxyCAFile
	cfg.ProxyCertFile, cfg.ProxyKeyFile = base.ProxyCertFile, base.ProxyKeyFile
	cfg.Key, cfg.Keys, cfg.ServiceCIDRs = base.Key, base.Keys, base.ServiceCIDRs
	cfg.Advertise, cfg.Shared, cfg.Components = f.advertise(base.Advertise), base.Shared, base.Components
	addressTypes := cfg.Kubelet.AddressTypes
	cfg.Kubelet = base.Kubelet
	cfg.Flags, cfg.Level, cfg.Log = base.Flags, base.Level, base.Log
	cfg.Limits.Stored = base.Limits.Stored
	f.keepUnset(map[string]func(){
		"requestheader-allowed-names": func() { cfg.FrontProxy.AllowedNames = base.FrontProxy.AllowedNames },
		"enable-aggregator-routing":   func() { cfg.EndpointRouting = base.EndpointRouting },
		"enable-bootstrap-token-auth": func() { cfg.BootstrapTokens = base.BootstrapTokens },
		"service-account-issuer":      func() { cfg.Issuers = base.Issuers },
		"profiling":                   func() { cfg.Profiling = base.Profiling },
		tracing.FileFlag:              func() { cfg.Tracing = base.Tracing },
	})
	if f.set.Changed("kubelet-preferred-address-types") {
		cfg.Kubelet.AddressTypes = addressTypes
	}
	if base.Audit.Path != "" {
		f.applyAudit(&cfg.Audit, &base.Audit)
	}
	return cfg, nil
}

// applyAudit sets the audit log settings in cfg to those of base, except for those whose flag is set.
func (f *Flags) applyAudit(cfg, base *audit.Config) {
	f.keepUnset(map[string]func(){
		"audit-log-path":      func() { cfg.Path = base.Path },
		"audit-policy-file":   func() { cfg.PolicyFile = base.PolicyFile },
		"audit-log-maxage":    func() { cfg.MaxAge = base.MaxAge },
		"audit-log-maxbackup": func() { cfg.MaxBackups = base.MaxBackups },
		"audit-log-maxsize":   func() { cfg.MaxSize = base.MaxSize },
	})
}

// keepUnset calls the function of each flag, by name, that is not set on the command line.
func (f *Flags) keepUnset(keep map[string]func()) {
	for flag, k := range keep {
		if !f.set.Changed(flag) {
			k()
		}
	}
}

// advertise returns the address of --advertise-address, or else of --bind-address, or else that of base, with the
// port of --secure-port.
func (f *Flags) advertise(base netip.AddrPort) netip.AddrPort {
	address := base.Addr()
	for _, text := range []string{f.options.bind, f.options.advertise} {
		if a, err := parseAddr(text); err == nil && !a.IsUnspecified() {
			address = a
		}
	}
	return netip.AddrPortFrom(address, uint16(f.options.port))
}

// LoadEncryption loads the configuration of encryption at rest, from file if no flag specifies another. It returns
// nil if there is none. The providers stop when ctx is canceled.
func (f *Flags) LoadEncryption(ctx context.Context, file string, log *slog.Logger) (*encryption.Transformers, error) {
	o := *f.options
	o.encryptionConfig = cmp.Or(o.encryptionConfig, file)
	return o.loadEncryption(ctx, log)
}

// Listen opens the listener for API requests. Without --bind-address, it listens on all addresses of both IP families.
func (f *Flags) Listen(ctx context.Context) (net.Listener, error) {
	host := f.options.bind
	if !f.set.Changed("bind-address") {
		host = ""
	}
	return f.options.more.listen(ctx, net.JoinHostPort(host, strconv.Itoa(f.options.port)))
}

// Address returns the address and port at which the server listens. The address is unspecified if it listens on all addresses.
func (f *Flags) Address() netip.AddrPort {
	address, err := parseAddr(f.options.bind)
	if err != nil { // Validate has returned this error
		address = netip.IPv4Unspecified()
	}
	return netip.AddrPortFrom(address, uint16(f.options.port))
}
