package compose

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"hyperkube/components/apiserver"
	"hyperkube/components/apiserver/authn"
	"hyperkube/components/apiserver/authz"
)

// Security says more about who is let in and what they may do: what most
// clusters leave as it is.
type Security struct {
	// AuthenticationConfigFile tells of issuers of tokens and of anonymous
	// requests; OIDC is an issuer instead of that. Either may be empty.
	AuthenticationConfigFile string
	OIDC                     *authn.OIDC
	TokenWebhook             authn.Webhook
	// AuthorizationConfigFile replaces the modes.
	AuthorizationConfigFile string
	AuthorizationWebhook    authz.Webhook
	// PolicyFile is for the mode ABAC.
	PolicyFile string

	// JWKSURI is where others find the keys of service account tokens;
	// empty: at this server.
	JWKSURI string
	// MaxTokenExpiration bounds what a service account token may be asked
	// for; zero does not. NoExtendedExpiration lets those that admission adds
	// to pods expire when they say.
	MaxTokenExpiration   time.Duration
	NoExtendedExpiration bool

	TLS apiserver.TLSConfig
}

// securityOptions are the flags of that.
type securityOptions struct {
	authenticationConfig, authorizationConfig string
	policyFile                                string
	oidc                                      authn.OIDC
	tokenHook                                 authn.Webhook
	hook                                      authz.Webhook
	jwksURI                                   string
	maxTokenExpiration                        time.Duration
	extendExpiration, lookup                  bool
	minVersion                                string
	ciphers                                   []string
	sni                                       []cliflag.NamedCertKey
	set                                       *pflag.FlagSet
}

func (o *securityOptions) flags(f *pflag.FlagSet) {
	o.set = f
	f.StringVar(&o.authenticationConfig, "authentication-config", "", "AuthenticationConfiguration: issuers of tokens, and who may come without credentials.")
	f.StringVar(&o.oidc.IssuerURL, "oidc-issuer-url", "", "URL of an OpenID issuer of tokens.")
	f.StringVar(&o.oidc.ClientID, "oidc-client-id", "", "Audience of its tokens.")
	f.StringVar(&o.oidc.CAFile, "oidc-ca-file", "", "Authorities of the issuer's server; empty: those of this machine.")
	f.StringVar(&o.oidc.UsernameClaim, "oidc-username-claim", "sub", "Claim with the user's name.")
	f.StringVar(&o.oidc.UsernamePrefix, "oidc-username-prefix", "", "What stands in front of names; empty: the issuer, unless the claim is email; \"-\": nothing.")
	f.StringVar(&o.oidc.GroupsClaim, "oidc-groups-claim", "", "Claim with the user's groups.")
	f.StringVar(&o.oidc.GroupsPrefix, "oidc-groups-prefix", "", "What stands in front of groups.")
	f.StringSliceVar(&o.oidc.SigningAlgs, "oidc-signing-algs", []string{"RS256"}, "Algorithms that may sign tokens.")
	f.Var(cliflag.NewMapStringStringNoSplit(&o.oidc.RequiredClaims), "oidc-required-claim", "A claim and the value that it must have, as key=value; may be repeated.")
	f.StringVar(&o.tokenHook.ConfigFile, "authentication-token-webhook-config-file", "", "Kubeconfig of a server that is asked whose a token is.")
	f.StringVar(&o.tokenHook.Version, "authentication-token-webhook-version", "v1beta1", "Version of the TokenReview that it is sent.")
	f.DurationVar(&o.tokenHook.CacheTTL, "authentication-token-webhook-cache-ttl", 2*time.Minute, "How long its answers are remembered.")
	f.StringVar(&o.authorizationConfig, "authorization-config", "", "AuthorizationConfiguration: authorizers in the order in which they are asked.")
	f.StringVar(&o.policyFile, "authorization-policy-file", "", "Policies of the mode ABAC, one JSON object a line.")
	f.StringVar(&o.hook.ConfigFile, "authorization-webhook-config-file", "", "Kubeconfig of a server that is asked what somebody may do.")
	f.StringVar(&o.hook.Version, "authorization-webhook-version", "v1beta1", "Version of the SubjectAccessReview that it is sent.")
	f.DurationVar(&o.hook.AuthorizedTTL, "authorization-webhook-cache-authorized-ttl", 5*time.Minute, "How long it is remembered that something is allowed.")
	f.DurationVar(&o.hook.UnauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl", 30*time.Second, "How long it is remembered that something is not.")
	f.StringVar(&o.jwksURI, "service-account-jwks-uri", "", "Where others find the keys of service account tokens; empty: at this server.")
	f.DurationVar(&o.maxTokenExpiration, "service-account-max-token-expiration", 0, "How long service account tokens may be asked for; zero: as long as one likes.")
	f.BoolVar(&o.extendExpiration, "service-account-extend-token-expiration", true, "Give the tokens that admission adds to pods a year instead of an hour.")
	f.BoolVar(&o.lookup, "service-account-lookup", true, "What service account tokens are bound to is always looked up; this is accepted and must be true.")
	f.StringVar(&o.minVersion, "tls-min-version", "", "Oldest version of TLS that is spoken: "+strings.Join(cliflag.TLSPossibleVersions(), ", ")+".")
	f.StringSliceVar(&o.ciphers, "tls-cipher-suites", nil, "Cipher suites of TLS 1.2; empty: Go's choice. Those of TLS 1.3 cannot be chosen.")
	f.Var(cliflag.NewNamedCertKeyArray(&o.sni), "tls-sni-cert-key", "Another serving certificate and its key, and for which names it is if not its own: cert,key[:name,name]. May be repeated.")
}

// config makes what the flags say.
func (o *securityOptions) config() (Security, error) {
	out := Security{
		AuthenticationConfigFile: o.authenticationConfig, TokenWebhook: o.tokenHook,
		AuthorizationConfigFile: o.authorizationConfig, AuthorizationWebhook: o.hook, PolicyFile: o.policyFile,
		JWKSURI: o.jwksURI, MaxTokenExpiration: o.maxTokenExpiration, NoExtendedExpiration: !o.extendExpiration,
	}
	given := func(prefix string) (names []string) {
		o.set.Visit(func(f *pflag.Flag) {
			if strings.HasPrefix(f.Name, prefix) {
				names = append(names, "--"+f.Name)
			}
		})
		return names
	}
	if given("oidc-") != nil {
		out.OIDC = &o.oidc
	}
	if o.authorizationConfig != "" {
		both := append(given("authorization-webhook-"), given("authorization-mode")...)
		both = append(both, given("authorization-policy-file")...)
		if len(both) > 0 {
			return out, fmt.Errorf("--authorization-config can not be specified when %s are defined", strings.Join(both, ", "))
		}
	}
	if !o.lookup {
		return out, errors.New("--service-account-lookup=false is not supported: tokens of what was deleted are never good")
	}
	var err error
	if o.minVersion != "" {
		if out.TLS.MinVersion, err = cliflag.TLSVersion(o.minVersion); err != nil {
			return out, fmt.Errorf("--tls-min-version: %w", err)
		}
	}
	if len(o.ciphers) > 0 {
		if out.TLS.CipherSuites, err = cliflag.TLSCipherSuites(o.ciphers); err != nil {
			return out, fmt.Errorf("--tls-cipher-suites: %w", err)
		}
	}
	for _, c := range slices.Backward(o.sni) {
		out.TLS.SNI = append(out.TLS.SNI, apiserver.NamedCertificate{CertFile: c.CertFile, KeyFile: c.KeyFile, Names: c.Names})
	}
	return out, nil
}

// clientCAs are the authorities that clients are told of, nil before it is
// known who is let in.
func (l *lateAuthenticator) clientCAs() *x509.CertPool {
	if a, ok := l.Request.(*authn.Authenticator); ok {
		return a.ClientCAs()
	}
	return nil
}
