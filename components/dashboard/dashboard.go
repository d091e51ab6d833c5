// Package dashboard serves a page that shows a cluster and changes it.
//
// The page is TypeScript (directory web), which is compiled into package bundle. It sends its requests to the API server
// through this server, which adds the credentials of the user, so RBAC decides what the page can do. Package stream sends
// changes of objects. On a user's machine, the credentials are those of a kubeconfig, and the server listens on loopback. In
// a cluster, users log in with a token.
package dashboard

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/client-go/rest"

	"hyperkube/components/dashboard/bundle"
	"hyperkube/components/dashboard/forward"
	"hyperkube/components/dashboard/oidclogin"
	"hyperkube/components/dashboard/stream"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/serving/tlsdefaults"
)

// sessionLifetime is the lifetime of sessions of users who have logged in with a token.
const sessionLifetime = 12 * time.Hour

// cookiePrefix is the prefix of the name of the cookie of a session. The port follows, because browsers send the cookies of
// a host to all its ports.
const cookiePrefix = "hyperkube-dashboard-"

// Config configures a Server.
type Config struct {
	// Listener accepts the connections. Run closes it.
	Listener net.Listener
	// Certificate is the certificate of the server. If it is nil, the server serves HTTP.
	Certificate *tls.Certificate
	// REST is the configuration of the API server. Unless Login is set, it contains the credentials of the user.
	REST *rest.Config
	// Login means that each user logs in with a token of the cluster. REST must not contain credentials then. Otherwise, the
	// one-time token in the URL logs in as the user of REST.
	Login bool
	// OIDC, unless nil, is the OpenID Connect provider at which users can log in too. It requires Login and Certificate.
	OIDC *oidclogin.Logins
	// Context is the name of the context of the kubeconfig, which the page shows.
	Context string
	Log     *slog.Logger
}

// Server serves the dashboard.
type Server struct {
	cfg      Config
	sessions *sessions
	once     onceToken         // unless cfg.Login is set
	user     *upstream         // the user of cfg.REST, nil if cfg.Login is set
	forwards *forward.Forwards // of user, nil if cfg.Login is set
	cookie   string            // name of the cookie
	handler  http.Handler
	upgrader websocket.Upgrader
}

// New validates cfg and returns a Server.
func New(cfg Config) (*Server, error) {
	if cfg.Listener == nil || cfg.REST == nil {
		return nil, errors.New("the dashboard requires a listener and the address of an API server")
	}
	if cfg.OIDC != nil && (!cfg.Login || cfg.Certificate == nil) {
		return nil, errors.New("logins with OpenID Connect require a server of HTTPS without its own credentials")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	_, port, err := net.SplitHostPort(cfg.Listener.Addr().String())
	if err != nil {
		return nil, fmt.Errorf("parsing the listen address: %w", err)
	}
	s := &Server{cfg: cfg, cookie: cookiePrefix + port, sessions: newSessions(0)}
	// The guard has compared the origin with the host.
	s.upgrader.Subprotocols = []string{stream.Protocol}
	s.upgrader.CheckOrigin = func(*http.Request) bool { return true }
	g := &guard{}
	if cfg.Login {
		s.sessions.lifetime = sessionLifetime
	} else {
		g.hosts = loopbackHosts(port)
		s.once.value = secret()
		if s.user, err = newUpstream(cfg.REST, cfg.Log); err != nil {
			return nil, err
		}
		if s.forwards, err = forward.New(s.user.rest); err != nil {
			return nil, err
		}
	}
	g.next = s.routes()
	s.handler = g
	return s, nil
}

// URL returns the URL of the page. It contains the one-time token unless users log in.
func (s *Server) URL() string {
	scheme := "http"
	if s.cfg.Certificate != nil {
		scheme = "https"
	}
	url := fmt.Sprintf("%s://%s/", scheme, s.cfg.Listener.Addr())
	if !s.cfg.Login {
		// Browsers do not send the fragment, so it does not appear in logs.
		url += "#token=" + s.once.value
	}
	return url
}

// Run serves until ctx is canceled. Open streams, logs and terminals are closed then.
func (s *Server) Run(ctx context.Context) error {
	server := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 5 * time.Minute,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
	}
	if s.user != nil {
		defer s.user.close()
		defer s.forwards.Close()
	}
	listener := s.cfg.Listener
	if s.cfg.Certificate != nil {
		// WebSockets require HTTP/1.1.
		listener = tls.NewListener(listener, &tls.Config{
			Certificates: []tls.Certificate{*s.cfg.Certificate}, MinVersion: tls.VersionTLS12, CipherSuites: tlsdefaults.CipherSuites(), NextProtos: []string{"http/1.1"},
		})
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the dashboard: %w", err)
	}
	return nil
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /session", s.login)
	mux.HandleFunc("GET /login", s.loginOptions)
	if s.cfg.OIDC != nil {
		mux.HandleFunc("GET /oidc/login", s.beginOIDC)
		mux.HandleFunc("GET "+callbackPath, s.finishOIDC)
	}
	mux.HandleFunc("GET /session", s.authenticated(s.showSession))
	mux.HandleFunc("DELETE /session", s.authenticated(s.logout))
	mux.HandleFunc("GET /stream", s.authenticated(s.stream))
	mux.HandleFunc("POST /apply", s.authenticated(apply))
	mux.HandleFunc("GET /yaml", s.authenticated(showYAML))
	mux.HandleFunc("GET /explanation", s.authenticated(explain))
	mux.HandleFunc("GET /connections", s.authenticated(showConnections))
	mux.HandleFunc("GET /certificates", s.authenticated(listCertificates))
	if s.forwards != nil {
		s.forwardRoutes(mux)
	}
	proxy := s.authenticated(func(w http.ResponseWriter, r *http.Request, one *session) { one.upstream.ServeHTTP(w, r) })
	for _, prefix := range []string{"/api", "/apis", "/openapi", "/version", "/livez", "/readyz", "/metrics"} {
		mux.HandleFunc(prefix, proxy)
		mux.HandleFunc(prefix+"/", proxy)
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	mux.Handle("/", bundle.Handler())
	return mux
}

// authenticated calls next with the session of the request, or responds that there is none. The context of the request is
// canceled when the session is deleted.
func (s *Server) authenticated(next func(http.ResponseWriter, *http.Request, *session)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		token := headerToken(r)
		cookie, err := r.Cookie(s.cookie)
		var found *session
		if err == nil {
			found = s.sessions.find(cookie.Value, token)
		}
		if found == nil {
			http.Error(w, s.hint(), http.StatusUnauthorized)
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		go func() {
			select {
			case <-found.done:
				cancel()
			case <-ctx.Done():
			}
		}()
		next(w, r.WithContext(ctx), found)
	}
}

// hint explains to a user without a session what to do.
func (s *Server) hint() string {
	if s.cfg.Login {
		return "log in with a token of the cluster"
	}
	return "run the command hyperkube dashboard again and open the URL that it prints"
}

// credentials is the body of a login.
type credentials struct {
	// Token is a one-time token or, if users log in, a bearer token of the cluster.
	Token string `json:"token"`
}

// login creates a session. It responds with the header token, which the page stores.
func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	var got credentials
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&got); err != nil {
		http.Error(w, "reading the token: "+err.Error(), http.StatusBadRequest)
		return
	}
	up := s.user
	if s.cfg.Login {
		token := got.Token
		if s.cfg.OIDC != nil {
			if redeemed, ok := s.cfg.OIDC.Redeem(token); ok {
				token = redeemed
			}
		}
		var err error
		if up, err = s.bearer(r.Context(), token); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
	} else if !s.once.use(got.Token) {
		http.Error(w, "the URL was used before: "+s.hint(), http.StatusUnauthorized)
		return
	}
	created := s.sessions.create(up)
	http.SetCookie(w, &http.Cookie{
		Name: s.cookie, Value: created.cookie, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
	})
	respond(w, map[string]string{"token": created.header})
}

// bearer returns an upstream for a bearer token, after the API server has accepted the token.
func (s *Server) bearer(ctx context.Context, token string) (*upstream, error) {
	if token == "" {
		return nil, errors.New("the token is empty")
	}
	cfg := rest.AnonymousClientConfig(s.cfg.REST)
	cfg.BearerToken = token
	up, err := newUpstream(cfg, s.cfg.Log)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	// Every authenticated user may list the API groups. Anonymous users may not.
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, up.url.JoinPath("/apis").String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := up.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("checking the token: %w", err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body) // so that the connection can be used again
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the API server does not accept the token: %s", resp.Status)
	}
	return up, nil
}

// showSession responds with what the page shows about the session.
func (s *Server) showSession(w http.ResponseWriter, _ *http.Request, one *session) {
	respond(w, map[string]any{"context": s.cfg.Context, "server": one.upstream.url.String(), "login": s.cfg.Login, "forwarding": s.forwards != nil})
}

func (s *Server) logout(w http.ResponseWriter, _ *http.Request, one *session) {
	s.sessions.delete(one)
	http.SetCookie(w, &http.Cookie{Name: s.cookie, Path: "/", MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	w.WriteHeader(http.StatusNoContent)
}

// stream serves the stream of a page.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, one *session) {
	conn, err := s.upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // Upgrade has responded
	}
	stream.Serve(r.Context(), conn, stream.Config{Client: one.upstream.client, URL: one.upstream.url, Log: s.cfg.Log})
}

func respond(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // the client has closed the connection
}

var _ lifecycle.Component = (*Server)(nil)
