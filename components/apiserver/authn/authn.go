// Package authn authenticates requests.
//
// The authenticators are tried in this order: the headers of a front proxy, a client certificate, a
// bearer token (from a file, of a service account, or for bootstrapping), and anonymous. The
// expensive part of each is done once: a certificate chain is verified once for the lifetime of its
// connections, and a token's signature once while the token is in use.
//
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/
package authn

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
)

// Config configures the authenticators. All fields except Log are optional.
type Config struct {
	// ClientCAFile is the CA bundle for client certificates.
	ClientCAFile string
	// FrontProxyCAFile is the CA bundle for certificates of front proxies. FrontProxy contains the
	// other settings.
	FrontProxyCAFile string
	FrontProxy       FrontProxy
	// TokenFile is a CSV file of static tokens: --token-auth-file.
	TokenFile string
	// ServiceAccounts verifies service account tokens: a *tokens.Verifier.
	ServiceAccounts authenticator.Token
	// BootstrapTokens, unless nil, reads the bootstrap tokens with which nodes join.
	BootstrapTokens kubernetes.Interface
	// ConfigFile is an AuthenticationConfiguration, which configures token issuers and anonymous
	// access. It is reloaded when it changes. --authentication-config.
	ConfigFile string
	// OIDC is a token issuer configured by flags instead of ConfigFile. Nil means none.
	OIDC *OIDC
	// Issuers are the issuers of this server's own tokens. No other issuer may use these names.
	Issuers []string
	// Webhook authenticates bearer tokens after all other authenticators.
	Webhook Webhook
	// Tokens are further authenticators of bearer tokens. They are tried last.
	Tokens []authenticator.Token
	// Audiences are the identifiers of this API server. Tokens that contain no audiences are valid
	// for them.
	Audiences authenticator.Audiences
	// Anonymous authenticates requests without credentials as system:anonymous. If AnonymousPaths
	// is not empty, this is limited to these paths.
	Anonymous      bool
	AnonymousPaths []string
	// Log receives messages about reloaded files. It must not be nil.
	Log *slog.Logger
}

// Authenticator finds out the user of each request. It is safe for concurrent use.
type Authenticator struct {
	cfg      Config
	bundles  []*CABundle
	clientCA *CABundle
	proxyCA  *CABundle
	requests []authenticator.Request
	tokens   []authenticator.Token
	issuers  *issuers
	proxies  proxyHeaders
	// joined caches the last result of ClientCAs.
	joined atomic.Pointer[joinedPools]
	// changed is a buffered channel that signals changes of the CA bundles.
	changed chan struct{}
}

var (
	_ authenticator.Request = (*Authenticator)(nil)
	_ authenticator.Token   = (*Authenticator)(nil)
)

// New reads the files that cfg names and returns an Authenticator with the configured
// authenticators. It returns an error if a file is invalid or settings contradict each other. Run
// reloads files that may change.
func New(cfg Config) (*Authenticator, error) {
	if cfg.Log == nil {
		return nil, errors.New("authentication requires a logger")
	}
	a := &Authenticator{cfg: cfg, changed: make(chan struct{}, 1), proxies: proxyHeaders{FrontProxy{}.Defaulted(), cfg.FrontProxy.Defaulted()}}
	var err error
	if cfg.FrontProxyCAFile != "" {
		if a.proxyCA, err = LoadCABundle(cfg.FrontProxyCAFile); err != nil {
			return nil, err
		}
		a.bundles = append(a.bundles, a.proxyCA)
		proxy := cfg.FrontProxy
		proxy.CA = a.proxyCA
		fp, err := newFrontProxy(proxy)
		if err != nil {
			return nil, err
		}
		a.requests = append(a.requests, fp)
	}
	if cfg.ClientCAFile != "" {
		if a.clientCA, err = LoadCABundle(cfg.ClientCAFile); err != nil {
			return nil, err
		}
		if a.proxyCA != nil && len(cfg.FrontProxy.AllowedNames) == 0 && shareCertificate(a.clientCA.PEM(), a.proxyCA.PEM()) {
			return nil, errOverlap
		}
		a.bundles = append(a.bundles, a.clientCA)
		a.requests = append(a.requests, clientCert{newVerifier(a.clientCA)})
	}
	if cfg.TokenFile != "" {
		file, err := tokenfile.NewCSV(cfg.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("reading tokens: %w", err)
		}
		a.tokens = append(a.tokens, authenticator.WrapAudienceAgnosticToken(cfg.Audiences, file))
	}
	if cfg.ServiceAccounts != nil {
		a.tokens = append(a.tokens, cfg.ServiceAccounts)
	}
	if cfg.BootstrapTokens != nil {
		b := bootstrapTokens{kube: cfg.BootstrapTokens, now: time.Now}
		a.tokens = append(a.tokens, authenticator.WrapAudienceAgnosticToken(cfg.Audiences, b))
	}
	// Authenticators that verify signatures or call other servers are tried after those that look
	// tokens up locally.
	if cfg.ConfigFile != "" && cfg.OIDC != nil {
		return nil, errIssuersTwice
	}
	if cfg.ConfigFile != "" || cfg.OIDC != nil {
		if a.issuers, err = newIssuers(cfg.ConfigFile, cfg.OIDC, cfg.Issuers, cfg.Log); err != nil {
			return nil, err
		}
		a.tokens = append(a.tokens, authenticator.WrapAudienceAgnosticToken(cfg.Audiences, a.issuers))
	}
	if cfg.Webhook.ConfigFile != "" {
		w, err := newWebhook(cfg.Webhook, cfg.Audiences)
		if err != nil {
			return nil, err
		}
		a.tokens = append(a.tokens, w)
	}
	a.tokens = append(a.tokens, cfg.Tokens...)
	if len(a.tokens) > 0 {
		a.requests = append(a.requests, bearertoken.New(a), websocket.NewProtocolAuthenticator(a))
	}
	return a, nil
}

// Run reloads the CA bundles and the authentication configuration when their files change, until ctx is canceled. It
// returns an error if the directory of a file cannot be watched.
func (a *Authenticator) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, b := range a.bundles {
		g.Go(func() error { return b.Run(ctx, a.cfg.Log, a.notifyChanged) })
	}
	if a.issuers != nil {
		g.Go(func() error { return a.issuers.run(ctx) })
	}
	// There may be no file to watch.
	<-ctx.Done()
	return g.Wait()
}

// ClientCAs returns the CAs of accepted client certificates, including those of front proxies, or nil if none are
// configured. A TLS server announces them to its clients. Call it for every connection
// (tls.Config.GetConfigForClient), because the CAs may change. It returns the same pool as long as they have not
// changed.
func (a *Authenticator) ClientCAs() *x509.CertPool {
	if len(a.bundles) == 0 {
		return nil
	}
	now := make([]*caPool, len(a.bundles))
	for i, b := range a.bundles {
		now[i] = b.current.Load()
	}
	if known := a.joined.Load(); known != nil && slices.Equal(known.sources, now) {
		return known.pool
	}
	next := &joinedPools{sources: now, pool: x509.NewCertPool()}
	for _, p := range now {
		next.pool.AppendCertsFromPEM(p.pem)
	}
	a.joined.Store(next)
	return next.pool
}

// joinedPools caches the result of ClientCAs. pool contains the certificates of sources, the CA bundles from which it
// was made. It is made again after one of them has been reloaded.
type joinedPools struct {
	sources []*caPool
	pool    *x509.CertPool
}

// CABundles returns the current CA bundles for clients and front proxies in PEM, for the ConfigMap
// kube-system/extension-apiserver-authentication. Either is nil if it is not configured. They must not be modified.
func (a *Authenticator) CABundles() (client, frontProxy []byte) {
	if a.clientCA != nil {
		client = a.clientCA.PEM()
	}
	if a.proxyCA != nil {
		frontProxy = a.proxyCA.PEM()
	}
	return client, frontProxy
}

// Changed returns a channel that receives a value when the result of CABundles may have changed. It
// supports a single receiver.
func (a *Authenticator) Changed() <-chan struct{} { return a.changed }

// notifyChanged sends to the channel of Changed. It does not block; one value stands for several changes.
func (a *Authenticator) notifyChanged() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// AuthenticateRequest authenticates req. Without credentials it returns the anonymous user, or false if anonymous
// access is not allowed for the path. Wrong credentials are an error, unless other credentials of the request are
// valid, and never fall back to anonymous. If it succeeds, it removes the headers of front proxies, so that no later
// handler trusts them.
func (a *Authenticator) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	resp, ok, err := a.authenticate(req)
	if ok && err == nil {
		a.proxies.clear(req.Header)
	}
	return resp, ok, err
}

// authenticate tries the authenticators in order and returns the first user found. If none is found it returns the
// errors of all of them. Without errors, which means without credentials, it returns the anonymous user if that is
// allowed for the path, and otherwise false.
func (a *Authenticator) authenticate(req *http.Request) (*authenticator.Response, bool, error) {
	var errs []error
	for _, r := range a.requests {
		resp, ok, err := r.AuthenticateRequest(req)
		if ok {
			return authenticated(resp), true, nil
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return nil, false, utilerrors.NewAggregate(errs)
	}
	if !a.anonymousAllowed(req.URL.Path) {
		return nil, false, nil
	}
	// Anonymous users are valid for every audience.
	audiences, _ := authenticator.AudiencesFrom(req.Context())
	return &authenticator.Response{User: anonymous, Audiences: audiences}, true, nil
}

// anonymousAllowed reports whether requests without credentials are allowed for a path. The
// authentication configuration file takes precedence over the flags.
func (a *Authenticator) anonymousAllowed(path string) bool {
	if a.issuers != nil {
		if cfg := a.issuers.current.Load().anonymous; cfg != nil {
			return anonymousAllowed(cfg, path)
		}
	}
	return a.cfg.Anonymous && (len(a.cfg.AnonymousPaths) == 0 || slices.Contains(a.cfg.AnonymousPaths, path))
}

// AuthenticateToken authenticates a bearer token, for requests and for TokenReviews. It returns the user of the first
// authenticator that accepts the token. Otherwise it returns false and the errors of the authenticators that rejected
// it; the error is nil if none recognizes the token.
func (a *Authenticator) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	var errs []error
	for _, t := range a.tokens {
		resp, ok, err := t.AuthenticateToken(ctx, token)
		if ok {
			return authenticated(resp), true, nil
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return nil, false, utilerrors.NewAggregate(errs)
}

// anonymous is the user of requests without credentials. It is shared and must not be modified.
var anonymous = &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}

// authenticated returns resp with the group system:authenticated added, unless the user is
// anonymous or has it already.
func authenticated(resp *authenticator.Response) *authenticator.Response {
	u := resp.User
	if u.GetName() == user.Anonymous {
		return resp
	}
	groups := u.GetGroups()
	if slices.Contains(groups, user.AllAuthenticated) || slices.Contains(groups, user.AllUnauthenticated) {
		return resp
	}
	return &authenticator.Response{
		Audiences: resp.Audiences,
		User: &user.DefaultInfo{
			Name:   u.GetName(),
			UID:    u.GetUID(),
			Groups: append(slices.Clone(groups), user.AllAuthenticated),
			Extra:  u.GetExtra(),
		},
	}
}
