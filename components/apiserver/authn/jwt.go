package authn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
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

	"hyperkube/internal/configfile"
	"hyperkube/internal/lifecycle"
)

// OIDC is the one issuer of tokens that flags can tell of: --oidc-*.
type OIDC struct {
	IssuerURL, ClientID string
	// CAFile verifies the issuer's server; empty: the machine's authorities.
	CAFile string
	// UsernameClaim is "sub" when empty. Names have the issuer in front
	// unless the claim is "email", or UsernamePrefix says something else;
	// "-" means nothing.
	UsernameClaim, UsernamePrefix string
	GroupsClaim, GroupsPrefix     string
	// SigningAlgs are RS256 when empty.
	SigningAlgs    []string
	RequiredClaims map[string]string
}

// configuration says the same in the form of a file.
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
			return nil, fmt.Errorf("reading the authorities of the OpenID issuer: %w", err)
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

// parseConfiguration reads an AuthenticationConfiguration of any version.
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
		return nil, fmt.Errorf("reading the authentication configuration: %w", err)
	}
	cfg, ok := obj.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("reading the authentication configuration: expected AuthenticationConfiguration, got %T", obj)
	}
	return cfg, nil
}

// issuers authenticates the tokens of OpenID issuers. It is an
// authenticator.Token; what it does is replaced when its file changes.
type issuers struct {
	file string
	algs []string
	// disallowed are issuers that are the server itself.
	disallowed []string
	compiler   authenticationcel.Compiler
	log        *slog.Logger

	// ctx ends with Run; the library's authenticators live as long.
	ctx     context.Context //nolint:containedctx // it is that of what current holds
	end     context.CancelFunc
	current atomic.Pointer[generation]
	// read is the file's content that is used, or was last refused for good;
	// only New and Run use it.
	read []byte
}

// generation is one content of the file.
type generation struct {
	tokens    []oidc.AuthenticatorTokenWithHealthCheck
	anonymous *apiserver.AnonymousAuthConfig
	end       context.CancelFunc
}

// newIssuers reads the file, or takes what flags say if it is empty.
func newIssuers(file string, flags *OIDC, disallowed []string, log *slog.Logger) (*issuers, error) {
	i := &issuers{file: file, disallowed: disallowed, log: log, compiler: authenticationcel.NewDefaultCompiler()}
	var cfg *apiserver.AuthenticationConfiguration
	var err error
	if file != "" {
		// All that the library knows; a token's issuer has its say in which.
		i.algs = oidc.AllValidSigningAlgorithms()
		if i.read, err = os.ReadFile(file); err == nil {
			cfg, err = parseConfiguration(i.read)
		}
	} else {
		i.algs = flags.SigningAlgs
		cfg, err = flags.configuration()
	}
	if err != nil {
		return nil, err
	}
	i.ctx, i.end = context.WithCancel(context.Background())
	g, err := i.build(cfg)
	if err != nil {
		i.end()
		return nil, err
	}
	i.current.Store(g)
	return i, nil
}

// build makes the authenticators of cfg. They find their keys in the
// background, so that an issuer that does not answer holds nobody up.
func (i *issuers) build(cfg *apiserver.AuthenticationConfiguration) (*generation, error) {
	if err := validation.ValidateAuthenticationConfiguration(i.compiler, cfg, i.disallowed).ToAggregate(); err != nil {
		return nil, fmt.Errorf("authentication configuration: %w", err)
	}
	ctx, end := context.WithCancel(i.ctx)
	g := &generation{end: end, anonymous: cfg.Anonymous}
	for _, jwt := range cfg.JWT {
		opts := oidc.Options{
			JWTAuthenticator: jwt, Compiler: i.compiler, SupportedSigningAlgs: i.algs, DisallowedIssuers: i.disallowed,
		}
		if ca := jwt.Issuer.CertificateAuthority; ca != "" {
			opts.CAContentProvider = caContent(ca)
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

// caContent is a bundle of authorities as the library wants it.
type caContent string

// CurrentCABundleContent as oidc.CAContentProvider.
func (c caContent) CurrentCABundleContent() []byte { return []byte(c) }

// AuthenticateToken implements authenticator.Token.
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

// How long a new configuration's issuers may take to answer before it is given
// up, and how often they are asked for it: the library tells by no event.
const (
	healthyWithin = time.Minute
	healthyEvery  = 250 * time.Millisecond
)

// run follows the file until ctx ends.
func (i *issuers) run(ctx context.Context) error {
	defer i.end()
	if i.file == "" {
		<-ctx.Done()
		return nil
	}
	return configfile.FollowRetrying(ctx, i.file, i.log, func() bool { return i.look(ctx) })
}

// look reads the file, and takes what is new in it over once it works. It
// returns false when that is to be tried again, for an issuer may answer later.
func (i *issuers) look(ctx context.Context) (done bool) {
	data, err := os.ReadFile(i.file)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			i.log.ErrorContext(ctx, "authentication configuration not reloaded", "error", err)
		}
		return true
	}
	if bytes.Equal(data, i.read) {
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
		i.read = data // which will never be right
		i.log.ErrorContext(ctx, "authentication configuration not reloaded", "error", err)
		return true
	}
	if err := next.healthy(ctx); err != nil {
		next.end()
		if ctx.Err() == nil {
			i.log.ErrorContext(ctx, "authentication configuration not reloaded", "error", err)
		}
		return false
	}
	i.read = data
	old := i.current.Swap(next)
	old.end()
	i.log.InfoContext(ctx, "authentication configuration reloaded", "file", i.file)
	return true
}

// healthy waits until all issuers have answered.
func (g *generation) healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthyWithin)
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
		if !lifecycle.Pause(ctx, healthyEvery) {
			return utilerrors.NewAggregate(errs)
		}
	}
}

// anonymousAllowed tells whether a request without credentials may go to a path.
func anonymousAllowed(cfg *apiserver.AnonymousAuthConfig, path string) bool {
	if !cfg.Enabled {
		return false
	}
	return len(cfg.Conditions) == 0 || slices.ContainsFunc(cfg.Conditions, func(c apiserver.AnonymousAuthCondition) bool {
		return c.Path == path
	})
}
