// Package authn tells who a request is from.
//
// In this order: a front proxy's headers, a client certificate, a bearer token
// (of a file, of a service account, for bootstrapping), and anonymous. The
// expensive part of each is done once: a certificate's chain for as long as
// its connections live, a token's signature while it is in use.
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

// Config says who is let in. Everything may be left out.
type Config struct {
	// ClientCAFile is the file of authorities of client certificates.
	ClientCAFile string
	// FrontProxyCAFile is the file of authorities of front proxies; FrontProxy
	// says the rest.
	FrontProxyCAFile string
	FrontProxy       FrontProxy
	// TokenFile is a CSV file of tokens: --token-auth-file.
	TokenFile string
	// ServiceAccounts verifies their tokens: a *tokens.Verifier.
	ServiceAccounts authenticator.Token
	// BootstrapTokens, when not nil, is where the tokens of joining machines
	// are read.
	BootstrapTokens kubernetes.Interface
	// ConfigFile is an AuthenticationConfiguration: issuers of tokens, and who
	// may come without credentials. It is read again when it changes.
	// --authentication-config.
	ConfigFile string
	// OIDC is an issuer of tokens, instead of those of ConfigFile; nil: none.
	OIDC *OIDC
	// Issuers are the server's own, which no other may claim to be.
	Issuers []string
	// Webhook is asked whose a bearer token is, after all others.
	Webhook Webhook
	// Tokens are further authenticators of bearer tokens, asked last.
	Tokens []authenticator.Token
	// Audiences are those of the API server, for tokens that do not know of
	// audiences.
	Audiences authenticator.Audiences
	// Anonymous lets requests without credentials in as system:anonymous. If
	// AnonymousPaths is not empty, only those to these paths.
	Anonymous      bool
	AnonymousPaths []string
	// Log must not be nil.
	Log *slog.Logger
}

// Authenticator tells who a request is from. Its methods are safe for several
// goroutines.
type Authenticator struct {
	cfg      Config
	bundles  []*CABundle
	clientCA *CABundle
	proxyCA  *CABundle
	requests []authenticator.Request
	tokens   []authenticator.Token
	issuers  *issuers
	proxies  proxyHeaders
	// joined is what ClientCAs returned last.
	joined atomic.Pointer[joinedPools]
	// changed has room for the news that bundles are others.
	changed chan struct{}
}

var (
	_ authenticator.Request = (*Authenticator)(nil)
	_ authenticator.Token   = (*Authenticator)(nil)
)

// New reads the files that cfg names.
func New(cfg Config) (*Authenticator, error) {
	if cfg.Log == nil {
		return nil, errors.New("authentication takes a log")
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
		if a.proxyCA != nil && len(cfg.FrontProxy.AllowedNames) == 0 && overlap(a.clientCA.PEM(), a.proxyCA.PEM()) {
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
	// What verifies by signatures, and what asks others, comes after what
	// knows its tokens.
	if cfg.ConfigFile != "" && cfg.OIDC != nil {
		return nil, errors.New("authentication-config file and oidc-* flags are mutually exclusive")
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

// Run follows the files that may change until ctx ends.
func (a *Authenticator) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, b := range a.bundles {
		g.Go(func() error { return b.Run(ctx, a.cfg.Log, a.tell) })
	}
	if a.issuers != nil {
		g.Go(func() error { return a.issuers.run(ctx) })
	}
	// There may be no file to follow.
	<-ctx.Done()
	return g.Wait()
}

// ClientCAs are the authorities that a TLS server shall name to its clients,
// those of front proxies included; nil if there are none. It is to be asked
// for every connection (tls.Config.GetConfigForClient), for they may change.
func (a *Authenticator) ClientCAs() *x509.CertPool {
	if len(a.bundles) == 0 {
		return nil
	}
	now := make([]*caPool, len(a.bundles))
	for i, b := range a.bundles {
		now[i] = b.current.Load()
	}
	if known := a.joined.Load(); known != nil && slices.Equal(known.of, now) {
		return known.pool
	}
	next := &joinedPools{of: now, pool: x509.NewCertPool()}
	for _, p := range now {
		next.pool.AppendCertsFromPEM(p.pem)
	}
	a.joined.Store(next)
	return next.pool
}

// joinedPools is one pool of the contents of several files.
type joinedPools struct {
	of   []*caPool
	pool *x509.CertPool
}

// CABundles are the present files of client and front proxy authorities, for
// the ConfigMap kube-system/extension-apiserver-authentication. Either may be
// nil.
func (a *Authenticator) CABundles() (client, frontProxy []byte) {
	if a.clientCA != nil {
		client = a.clientCA.PEM()
	}
	if a.proxyCA != nil {
		frontProxy = a.proxyCA.PEM()
	}
	return client, frontProxy
}

// Changed is received from, by one, when CABundles may return something else.
func (a *Authenticator) Changed() <-chan struct{} { return a.changed }

func (a *Authenticator) tell() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// AuthenticateRequest tells who req is from. Without credentials, and without
// anonymous access, it is false; with wrong ones it is an error, and never
// anonymous. Credentials that were used are removed from the headers, and so is
// what front proxies say, whoever says it: nobody behind is to believe it.
func (a *Authenticator) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	resp, ok, err := a.sender(req)
	if ok && err == nil {
		a.proxies.clear(req.Header)
	}
	return resp, ok, err
}

func (a *Authenticator) sender(req *http.Request) (*authenticator.Response, bool, error) {
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
	// Whoever is anonymous is so for every audience.
	audiences, _ := authenticator.AudiencesFrom(req.Context())
	return &authenticator.Response{User: anonymous, Audiences: audiences}, true, nil
}

// anonymousAllowed tells whether a request without credentials may go to a
// path. A configuration file that says something about that has the say.
func (a *Authenticator) anonymousAllowed(path string) bool {
	if a.issuers != nil {
		if cfg := a.issuers.current.Load().anonymous; cfg != nil {
			return anonymousAllowed(cfg, path)
		}
	}
	return a.cfg.Anonymous && (len(a.cfg.AnonymousPaths) == 0 || slices.Contains(a.cfg.AnonymousPaths, path))
}

// AuthenticateToken tells whose bearer token it is, for TokenReview as well.
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

// anonymous is shared; nobody writes to a user.
var anonymous = &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}

// authenticated adds the group of all that are.
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
