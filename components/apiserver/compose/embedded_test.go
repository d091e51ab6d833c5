package compose

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/components/apiserver"
	"hyperkube/components/apiserver/audit"
	"hyperkube/components/apiserver/authn"
)

// parseEmbedded returns the Flags of a command line.
func parseEmbedded(t *testing.T, args ...string) *Flags {
	t.Helper()
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	f := NewFlags(set)
	if err := set.Parse(args); err != nil {
		t.Fatal(err)
	}
	return f
}

// embeddedBase is a configuration with other values than the defaults of kube-apiserver, where a program may determine them.
func embeddedBase() Config {
	base := Config{
		CertFile: "/cert", KeyFile: "/key", ClientCAFile: "/ca", FrontProxyCAFile: "/front", ProxyCertFile: "/proxy", ProxyKeyFile: "/proxykey",
		FrontProxy: authn.FrontProxy{AllowedNames: []string{"front"}}, EndpointRouting: true, BootstrapTokens: true,
		Issuers: []string{"https://issuer"}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")},
		Advertise: netip.MustParseAddrPort("192.0.2.9:6443"), Profiling: true,
		Kubelet: apiserver.KubeletConfig{CAFile: "/kubelets", AddressTypes: []string{"InternalIP"}}, Log: slog.New(slog.DiscardHandler),
	}
	base.Audit.Flags(pflag.NewFlagSet("", pflag.ContinueOnError))
	base.Audit.Path, base.Audit.PolicyFile, base.Audit.MaxAge = "/audit", "/policy", 30
	return base
}

// TestEmbeddedKeepsBase checks that everything that no flag sets is as in the base.
func TestEmbeddedKeepsBase(t *testing.T) {
	base := embeddedBase()
	cfg, err := parseEmbedded(t).Apply(base)
	if err != nil {
		t.Fatal(err)
	}
	want, got := reflect.ValueOf(base), reflect.ValueOf(cfg)
	for i := range want.NumField() {
		name := want.Type().Field(i).Name
		if !want.Field(i).IsZero() && name != "FrontProxy" && !reflect.DeepEqual(want.Field(i).Interface(), got.Field(i).Interface()) {
			t.Errorf("%s is %+v, want %+v", name, got.Field(i), want.Field(i))
		}
	}
	if !slices.Equal(cfg.FrontProxy.AllowedNames, base.FrontProxy.AllowedNames) || cfg.Shared || cfg.NoAnonymous || cfg.TokenFile != "" || cfg.OIDC != nil {
		t.Errorf("%+v", cfg)
	}
}

func TestEmbeddedFlags(t *testing.T) {
	f := parseEmbedded(t,
		"--bind-address=192.0.2.1", "--secure-port=7443", "--oidc-issuer-url=https://oidc", "--oidc-client-id=k", "--audit-log-maxage=7",
		"--enable-admission-plugins=AlwaysPullImages", "--runtime-config=batch/v1=false", "--event-ttl=2h", "--anonymous-auth=false",
		"--service-account-issuer=https://other", "--service-node-port-range=31000-31999", "--kubelet-preferred-address-types=Hostname",
		"--max-requests-inflight=7", "--tls-min-version=VersionTLS13", "--enable-bootstrap-token-auth=false",
	)
	if err := f.Validate(); err != nil {
		t.Fatal(err)
	}
	cfg, err := f.Apply(embeddedBase())
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Advertise != netip.MustParseAddrPort("192.0.2.1:7443") || f.Address() != cfg.Advertise {
		t.Errorf("addresses: %s, %s", cfg.Advertise, f.Address())
	}
	if cfg.OIDC == nil || cfg.OIDC.IssuerURL != "https://oidc" || cfg.TLS.MinVersion == 0 || !cfg.NoAnonymous || cfg.BootstrapTokens {
		t.Errorf("security: %+v", cfg.Security)
	}
	if want := (audit.Config{Path: "/audit", PolicyFile: "/policy", MaxAge: 7}); cfg.Audit.Path != want.Path || cfg.Audit.PolicyFile != want.PolicyFile || cfg.Audit.MaxAge != want.MaxAge {
		t.Errorf("audit: %+v", cfg.Audit)
	}
	if !cfg.Disabled(schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}) || cfg.EventTTL != 2*time.Hour || cfg.NodePorts.Base != 31000 ||
		cfg.EnableAdmission[0] != "AlwaysPullImages" || cfg.Issuers[0] != "https://other" || cfg.Kubelet.AddressTypes[0] != "Hostname" || cfg.Kubelet.CAFile != "/kubelets" || cfg.InFlight.Reading != 7 {
		t.Errorf("%+v", cfg)
	}
	if cfg, err = parseEmbedded(t, "--advertise-address=192.0.2.3", "--bind-address=192.0.2.1").Apply(embeddedBase()); err != nil || cfg.Advertise.String() != "192.0.2.3:6443" {
		t.Errorf("advertised: %s, %v", cfg.Advertise, err)
	}
}

func TestEmbeddedValidate(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	policy := file("policy.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: All}]\n")
	keys := file("encryption.yaml", "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources: [{resources: [secrets], providers: [{aescbc: {}}]}]\n")
	jwt := file("authentication.yaml", "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt: [{issuer: {url: 'http://insecure', audiences: [a]}}]\n")
	modes := file("authorization.yaml", "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{type: Magic, name: a}]\n")
	for args, want := range map[string]string{
		"--secure-port=0":                               "--secure-port",
		"--bind-address=here":                           "--bind-address",
		"--bind-address=::1":                            "loopback",
		"--advertise-address=here":                      "--advertise-address",
		"--enable-admission-plugins=Magic":              "Magic",
		"--admission-control-config-file=/missing":      "/missing",
		"--audit-policy-file=" + policy:                 "level",
		"--encryption-provider-config=/missing":         "/missing",
		"--encryption-provider-config=" + keys:          "at least one keys is required",
		"--encryption-provider-config-automatic-reload": "must be set with --encryption-provider-config",
		"--authentication-config=/missing":              "/missing",
		"--authentication-config=" + jwt:                "URL scheme must be https",
		"--authorization-config=" + modes:               "Magic",
		"--authorization-policy-file=/missing":          "/missing",
		"--token-auth-file=/missing":                    "/missing",
		"--oidc-issuer-url=https://a":                   "oidc-client-id",
		"--oidc-issuer-url=http://a --oidc-client-id=a": "URL scheme must be https",
		"--service-account-lookup=false":                "--service-account-lookup",
	} {
		if err := parseEmbedded(t, strings.Fields(args)...).Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}
