package authn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"reflect"
	"slices"
	"sort"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"

	"hyperkube/internal/base/configfile"
	"hyperkube/internal/base/lifecycle"
)

// OIDC is the token issuer that flags configure: --oidc-*.
type OIDC struct {
	IssuerURL, ClientID string
	// CAFile verifies the issuer's server certificate. If empty, the host's root CAs are used.
	CAFile string
	// UsernameClaim is the claim with the user name, "sub" by default. UsernamePrefix is put before the name; "-"
	// means no prefix. If it is empty, the prefix is the issuer's URL and "#", or none if the claim is "email".
	UsernameClaim, UsernamePrefix string
	// GroupsClaim is the claim with the user's groups, each of which gets GroupsPrefix. Empty means no groups.
	GroupsClaim, GroupsPrefix string
	// SigningAlgs are the accepted signing algorithms of tokens. Empty means RS256.
	SigningAlgs []string
	// RequiredClaims are claims that a token must contain with these values.
	RequiredClaims map[string]string
}

// configuration converts the --oidc-* flags to an AuthenticationConfiguration. It returns an error
// if required flags are missing or the CA file cannot be read.
func (o *OIDC) configuration() (*apiserver.AuthenticationConfiguration, error) {
	if o.IssuerURL == "" || o.ClientID == "" {
		return nil, errors.New("oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set")
	}
	claim, prefix := o.UsernameClaim, o.UsernamePrefix
	if claim == "" {
		claim = "sub"
	}
	switch {
	case prefix == "-":
		prefix = ""
	case prefix == "" && claim != "email":
		prefix = o.IssuerURL + "#"
	}
	jwt := apiserver.JWTAuthenticator{
		Issuer: apiserver.Issuer{URL: o.IssuerURL, Audiences: []string{o.ClientID}},
		ClaimMappings: apiserver.ClaimMappings{
			Username: apiserver.PrefixedClaimOrExpression{Claim: claim, Prefix: &prefix},
		},
	}
	if o.GroupsClaim != "" {
		jwt.ClaimMappings.Groups = apiserver.PrefixedClaimOrExpression{Claim: o.GroupsClaim, Prefix: &o.GroupsPrefix}
	}
	if o.CAFile != "" {
		ca, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading CA bundle of the OpenID Connect issuer: %w", err)
		}
		jwt.Issuer.CertificateAuthority = string(ca)
	}
	for name, value := range o.RequiredClaims {
		jwt.ClaimValidationRules = append(jwt.ClaimValidationRules, apiserver.ClaimValidationRule{Claim: name, RequiredValue: value})
	}
	sort.Slice(jwt.ClaimValidationRules, func(i, j int) bool {
		return jwt.ClaimValidationRules[i].Claim < jwt.ClaimValidationRules[j].Claim
	})
	return &apiserver.AuthenticationConfiguration{JWT: []apiserver.JWTAuthenticator{jwt}}, nil
}

// parseConfiguration decodes an AuthenticationConfiguration of any API version, strictly. It does
// not validate it.
//
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#using-authentication-configuration
func parseConfiguration(data []byte) (*apiserver.AuthenticationConfiguration, error) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, errors.New("the authentication configuration is empty")
	}
	obj, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), data)
	if err != nil {
		return nil, fmt.Errorf("reading authentication configuration: %w", err)
	}
	cfg, ok := obj.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("reading authentication configuration: expected AuthenticationConfiguration, got %T", obj)
	}
	return cfg, nil
}

// issuers authenticates tokens of external token issuers (OpenID Connect). It implements
// authenticator.Token. When the authentication configuration file changes, it replaces its
// authenticators.
type issuers struct {
	file string
	algs []string
	// disallowed are the issuers of the server itself.
	disallowed []string
	compiler   authenticationcel.Compiler
	log        *slog.Logger
	// offline is true if the issuers are only validated, and never contacted.
	offline bool

	// ctx is canceled when run returns. It limits the lifetime of the library's authenticators.
	ctx     context.Context //nolint:containedctx // it belongs to the authenticators in current
	cancel  context.CancelFunc
	current atomic.Pointer[generation]
	// lastRead is the file content in use, or the content last rejected as invalid. Only newIssuers and run use it.
	lastRead []byte
}

// generation contains the authenticators that were created from one version of the authentication configuration. After
// a change of the file, a new generation replaces it.
type generation struct {
	tokens    []oidc.AuthenticatorTokenWithHealthCheck
	anonymous *apiserver.AnonymousAuthConfig
	cancel    context.CancelFunc
}

// newIssuers creates the authenticators that the configuration file specifies or, if file is empty, the flags.
// disallowed are the issuer names that are reserved for this server's tokens. It returns an error for an invalid
// configuration, but does not wait for the issuers to respond.
func newIssuers(file string, flags *OIDC, disallowed []string, log *slog.Logger) (*issuers, error) {
	i := &issuers{file: file, disallowed: disallowed, log: log, compiler: authenticationcel.NewDefaultCompiler()}
	if err := i.create(flags); err != nil {
		return nil, err
	}
	return i, nil
}

// ValidateIssuers returns the errors that New would return for the external token issuers of cfg. It does not contact
// the issuers. It returns nil if there are none.
func ValidateIssuers(cfg Config) error {
	if cfg.ConfigFile != "" && cfg.OIDC != nil {
		return errIssuersTwice
	}
	if cfg.ConfigFile == "" && cfg.OIDC == nil {
		return nil
	}
	i := &issuers{file: cfg.ConfigFile, disallowed: cfg.Issuers, log: cfg.Log, compiler: authenticationcel.NewDefaultCompiler(), offline: true}
	err := i.create(cfg.OIDC)
	if err == nil {
		i.cancel()
	}
	return err
}

// errIssuersTwice is the error about token issuers that are configured by a file and by flags.
var errIssuersTwice = errors.New("authentication-config file and oidc-* flags are mutually exclusive")

// noKeys is the key set of an issuer that is not contacted. It accepts no signature.
type noKeys struct{}

// VerifySignature implements the interface KeySet of go-oidc.
func (noKeys) VerifySignature(context.Context, string) ([]byte, error) {
	return nil, errors.New("the issuer has no keys")
}

// create creates the first authenticators from the configuration file or, if there is none, the flags. It returns an
// error if the configuration is invalid.
func (i *issuers) create(flags *OIDC) error {
	file := i.file
	var cfg *apiserver.AuthenticationConfiguration
	var err error
	if file != "" {
		// All algorithms of the library are allowed. The issuer's keys determine which ones are
		// used.
		i.algs = oidc.AllValidSigningAlgorithms()
		if i.lastRead, err = os.ReadFile(file); err == nil {
			cfg, err = parseConfiguration(i.lastRead)
		}
	} else {
		i.algs = flags.SigningAlgs
		cfg, err = flags.configuration()
	}
	if err != nil {
		return err
	}
	i.ctx, i.cancel = context.WithCancel(context.Background())
	g, err := i.build(cfg)
	if err != nil {
		i.cancel()
		return err
	}
	i.current.Store(g)
	return nil
}

// build validates cfg and creates its authenticators. They fetch their keys in the background, so an issuer that does
// not respond does not block the startup.
func (i *issuers) build(cfg *apiserver.AuthenticationConfiguration) (*generation, error) {
	if err := validation.ValidateAuthenticationConfiguration(i.compiler, cfg, i.disallowed).ToAggregate(); err != nil {
		return nil, fmt.Errorf("authentication configuration: %w", err)
	}
	ctx, end := context.WithCancel(i.ctx)
	g := &generation{cancel: end, anonymous: cfg.Anonymous}
	for _, jwt := range cfg.JWT {
		opts := oidc.Options{
			JWTAuthenticator: jwt, Compiler: i.compiler, SupportedSigningAlgs: i.algs, DisallowedIssuers: i.disallowed,
		}
		if ca := jwt.Issuer.CertificateAuthority; ca != "" {
			opts.CAContentProvider = caContent(ca)
		}
		if i.offline {
			opts.KeySet = noKeys{}
			if opts.CAContentProvider == nil {
				opts.Client = http.DefaultClient // unused; without it, the library logs that it uses the CAs of the host
			}
			opts.JWTAuthenticator.Issuer.DiscoveryURL = "" // the library accepts only one of them
		}
		t, err := oidc.New(ctx, opts)
		if err != nil {
			end()
			return nil, fmt.Errorf("issuer %q: %w", jwt.Issuer.URL, err)
		}
		g.tokens = append(g.tokens, t)
	}
	return g, nil
}

// caContent is a PEM bundle that implements oidc.CAContentProvider.
type caContent string

// CurrentCABundleContent implements oidc.CAContentProvider. It returns the configured CAs of the
// issuer, which never change.
func (c caContent) CurrentCABundleContent() []byte { return []byte(c) }

// AuthenticateToken implements authenticator.Token. It returns the user from the first issuer that accepts the token,
// and otherwise false and the errors of the issuers that rejected it.
func (i *issuers) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	var errs []error
	for _, t := range i.current.Load().tokens {
		resp, ok, err := t.AuthenticateToken(ctx, token)
		if ok {
			return resp, true, nil
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return nil, false, utilerrors.NewAggregate(errs)
}

// healthTimeout is the time that the issuers of a new configuration have to become healthy before the configuration is
// rejected and tried again. healthPollInterval is the interval at which their health is checked; the OIDC library has
// no notification for it.
const (
	healthTimeout      = time.Minute
	healthPollInterval = 250 * time.Millisecond
)

// run reloads the configuration file, if there is one, when it changes, until ctx is canceled. Then it stops the
// authenticators.
func (i *issuers) run(ctx context.Context) error {
	defer i.cancel()
	if i.file == "" {
		<-ctx.Done()
		return nil
	}
	return configfile.FollowRetrying(ctx, i.file, i.log, func() bool { return i.reload(ctx) })
}

// reload reads the configuration file and, if it has changed, replaces the authenticators once the issuers in it are
// healthy. It logs and ignores an invalid file and a change of anonymous access. It returns false if the caller must
// try again later, because an issuer that does not respond now may respond then.
func (i *issuers) reload(ctx context.Context) (done bool) {
	data, err := os.ReadFile(i.file)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			i.log.ErrorContext(ctx, "reading changed authentication configuration file failed; the previous configuration stays in effect, no retry until the file changes: make the file readable, it is then reloaded", "file", i.file, "err", err)
		}
		return true
	}
	if bytes.Equal(data, i.lastRead) {
		return true
	}
	cfg, err := parseConfiguration(data)
	if err == nil && !reflect.DeepEqual(cfg.Anonymous, i.current.Load().anonymous) {
		err = field.Forbidden(field.NewPath("anonymous"), "changed from initial configuration file")
	}
	var next *generation
	if err == nil {
		next, err = i.build(cfg)
	}
	if err != nil {
		i.lastRead = data // an invalid file is not retried
		i.log.ErrorContext(ctx, "changed authentication configuration file is invalid; the previous configuration stays in effect: correct the file, it is then reloaded", "file", i.file, "err", err)
		return true
	}
	if err := next.healthy(ctx); err != nil {
		next.cancel()
		if ctx.Err() == nil {
			i.log.ErrorContext(ctx, "issuer of the changed authentication configuration does not respond; the previous configuration stays in effect, retrying with back-off: check that the issuer is reachable", "file", i.file, "err", err)
		}
		return false
	}
	i.lastRead = data
	old := i.current.Swap(next)
	old.cancel()
	i.log.InfoContext(ctx, "authentication configuration reloaded after a change of the file, it is in effect now", "file", i.file)
	return true
}

// healthy waits until all issuers are healthy, which means that their keys were fetched. After healthTimeout, or when
// ctx is canceled, it returns the errors of those that are not.
func (g *generation) healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	for {
		var errs []error
		for _, t := range g.tokens {
			if err := t.HealthCheck(); err != nil {
				errs = append(errs, err)
			}
		}
		if len(errs) == 0 {
			return nil
		}
		if !lifecycle.Pause(ctx, healthPollInterval) {
			return utilerrors.NewAggregate(errs)
		}
	}
}

// anonymousAllowed reports whether cfg allows requests without credentials for a path. Without conditions it allows
// all paths.
func anonymousAllowed(cfg *apiserver.AnonymousAuthConfig, path string) bool {
	if !cfg.Enabled {
		return false
	}
	return len(cfg.Conditions) == 0 || slices.ContainsFunc(cfg.Conditions, func(c apiserver.AnonymousAuthCondition) bool {
		return c.Path == path
	})
}
