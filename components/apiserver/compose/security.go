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

// Security contains the authentication and authorization settings that most clusters leave at their
// defaults.
type Security struct {
	// AuthenticationConfigFile is the file that configures token issuers and anonymous requests.
	// OIDC is an alternative with a single issuer. Both are optional.
	AuthenticationConfigFile string
	OIDC                     *authn.OIDC
	// TokenWebhook configures a webhook that authenticates bearer tokens.
	TokenWebhook authn.Webhook
	// AuthorizationConfigFile is the file that configures the authorizers. It replaces
	// AuthorizationModes.
	AuthorizationConfigFile string
	// AuthorizationWebhook configures the mode Webhook in AuthorizationModes.
	AuthorizationWebhook authz.Webhook
	// PolicyFile is the policy file of the ABAC mode.
	PolicyFile string

	// JWKSURI is the URL of the public keys of service account tokens, for the OpenID discovery
	// document. Empty means a URL of this server.
	JWKSURI string
	// MaxTokenExpiration limits the requested lifetime of service account tokens. Zero means no
	// limit. NoExtendedExpiration disables the extended lifetime of tokens that admission adds to
	// pods.
	MaxTokenExpiration   time.Duration
	NoExtendedExpiration bool

	TLS apiserver.TLSConfig
}

// securityOptions contains the values of the flags for Security.
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

// flags adds to f the flags of kube-apiserver for authentication, authorization, service account tokens and TLS that most
// clusters leave at their defaults. They set the fields of o.
func (o *securityOptions) flags(f *pflag.FlagSet) {
	o.set = f
	f.StringVar(&o.authenticationConfig, "authentication-config", "", "File with Authentication Configuration to configure the JWT Token authenticator or the anonymous authenticator.")
	f.StringVar(&o.oidc.IssuerURL, "oidc-issuer-url", "", "The URL of the OpenID issuer, only HTTPS scheme will be accepted. If set, it will be used to verify the OIDC JSON Web Token (JWT).")
	f.StringVar(&o.oidc.ClientID, "oidc-client-id", "", "The client ID for the OpenID Connect client, must be set if oidc-issuer-url is set.")
	f.StringVar(&o.oidc.CAFile, "oidc-ca-file", "", "If set, the OpenID server's certificate will be verified by one of the authorities in the oidc-ca-file, otherwise the host's root CA set will be used.")
	f.StringVar(&o.oidc.UsernameClaim, "oidc-username-claim", "sub", "The OpenID claim to use as the user name.")
	f.StringVar(&o.oidc.UsernamePrefix, "oidc-username-prefix", "", "If provided, all usernames will be prefixed with this value. If not provided, username claims other than 'email' are prefixed by the issuer URL to avoid clashes. To skip any prefixing, provide the value '-'.")
	f.StringVar(&o.oidc.GroupsClaim, "oidc-groups-claim", "", "If provided, the name of a custom OpenID Connect claim for specifying user groups.")
	f.StringVar(&o.oidc.GroupsPrefix, "oidc-groups-prefix", "", "If provided, all groups will be prefixed with this value to prevent conflicts with other authentication strategies.")
	f.StringSliceVar(&o.oidc.SigningAlgs, "oidc-signing-algs", []string{"RS256"}, "Comma-separated list of allowed JOSE asymmetric signing algorithms.")
	f.Var(cliflag.NewMapStringStringNoSplit(&o.oidc.RequiredClaims), "oidc-required-claim", "A key=value pair that describes a required claim in the ID Token. Repeat this flag to specify multiple claims.")
	f.StringVar(&o.tokenHook.ConfigFile, "authentication-token-webhook-config-file", "", "File with webhook configuration for token authentication in kubeconfig format.")
	f.StringVar(&o.tokenHook.Version, "authentication-token-webhook-version", "v1beta1", "The API version of the authentication.k8s.io TokenReview to send to and expect from the webhook.")
	f.DurationVar(&o.tokenHook.CacheTTL, "authentication-token-webhook-cache-ttl", 2*time.Minute, "The duration to cache responses from the webhook token authenticator.")
	f.StringVar(&o.authorizationConfig, "authorization-config", "", "File with Authorization Configuration to configure the authorizer chain.")
	f.StringVar(&o.policyFile, "authorization-policy-file", "", "File with authorization policy in json line by line format, used with --authorization-mode=ABAC.")
	f.StringVar(&o.hook.ConfigFile, "authorization-webhook-config-file", "", "File with webhook configuration in kubeconfig format, used with --authorization-mode=Webhook.")
	f.StringVar(&o.hook.Version, "authorization-webhook-version", "v1beta1", "The API version of the authorization.k8s.io SubjectAccessReview to send to and expect from the webhook.")
	f.DurationVar(&o.hook.AuthorizedTTL, "authorization-webhook-cache-authorized-ttl", 5*time.Minute, "The duration to cache 'authorized' responses from the webhook authorizer.")
	f.DurationVar(&o.hook.UnauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl", 30*time.Second, "The duration to cache 'unauthorized' responses from the webhook authorizer.")
	f.StringVar(&o.jwksURI, "service-account-jwks-uri", "", "Overrides the URI for the JSON Web Key Set in the discovery doc served at /.well-known/openid-configuration. If empty, a URI of this server is used.")
	f.DurationVar(&o.maxTokenExpiration, "service-account-max-token-expiration", 0, "The maximum validity duration of a token created by the service account token issuer. Zero means no limit.")
	f.BoolVar(&o.extendExpiration, "service-account-extend-token-expiration", true, "Turns on projected service account expiration extension during token generation, which extends the lifetime of tokens that admission adds to pods from one hour to one year.")
	f.BoolVar(&o.lookup, "service-account-lookup", true, "Validate that the objects to which ServiceAccount tokens are bound exist. It must be true.")
	f.StringVar(&o.minVersion, "tls-min-version", "", "Minimum TLS version supported. Possible values: "+strings.Join(cliflag.TLSPossibleVersions(), ", ")+".")
	f.StringSliceVar(&o.ciphers, "tls-cipher-suites", nil, "Comma-separated list of cipher suites for TLS 1.2. If omitted, the cipher suites with forward secrecy and authenticated encryption (AEAD) are used. The cipher suites of TLS 1.3 are not configurable.")
	f.Var(cliflag.NewNamedCertKeyArray(&o.sni), "tls-sni-cert-key", "A pair of x509 certificate and private key file paths, optionally suffixed with a list of domain patterns: cert,key[:name,name]. If no domain patterns are provided, the names of the certificate are used. Can be specified multiple times.")
}

// config validates the flags and converts them to a Security. It returns an error for invalid TLS versions and cipher
// suites, --service-account-lookup=false, and --authorization-config together with flags that it replaces.
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
		return out, errors.New("--service-account-lookup=false is not supported: tokens bound to deleted objects are always invalid")
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

// clientCAs returns the CAs of client certificates, which the server announces to clients in TLS
// handshakes. It returns nil before the authenticator is set.
func (l *lateAuthenticator) clientCAs() *x509.CertPool {
	if a, ok := l.Request.(*authn.Authenticator); ok {
		return a.ClientCAs()
	}
	return nil
}
