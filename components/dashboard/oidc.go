package dashboard

import (
	"crypto/subtle"
	"net/http"
	"net/url"
	"time"
)

// callbackPath is the path to which an OpenID Connect provider redirects the browser after a login.
const callbackPath = "/oidc/callback"

// stateCookie returns the name of the cookie with the state of a login at the provider.
func (s *Server) stateCookie() string { return s.cookie + "-oidc" }

// loginOptions responds with the ways in which users can log in, which the page shows to users without a session.
func (s *Server) loginOptions(w http.ResponseWriter, _ *http.Request) {
	options := map[string]any{"token": s.cfg.Login}
	if s.cfg.OIDC != nil {
		options["provider"] = s.cfg.OIDC.Provider()
	}
	respond(w, options)
}

// beginOIDC redirects the browser to the provider.
func (s *Server) beginOIDC(w http.ResponseWriter, r *http.Request) {
	redirect := url.URL{Scheme: "https", Host: r.Host, Path: callbackPath}
	address, state, err := s.cfg.OIDC.Begin(r.Context(), redirect.String())
	if err != nil {
		s.cfg.Log.WarnContext(r.Context(), "login at the OpenID Connect provider failed; users cannot log in until the provider responds", "err", err)
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	// The provider's redirect is a navigation from another site, with which a strict cookie would not be sent.
	http.SetCookie(w, &http.Cookie{
		Name: s.stateCookie(), Value: state, Path: callbackPath, MaxAge: int((10 * time.Minute).Seconds()), HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: true,
	})
	http.Redirect(w, r, address, http.StatusFound)
}

// finishOIDC completes a login. It redirects the browser to the page with a one-time token, which the page exchanges for a
// session.
func (s *Server) finishOIDC(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, &http.Cookie{Name: s.stateCookie(), Path: callbackPath, MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: true})
	query := r.URL.Query()
	// Otherwise another page could log the browser in as another user.
	cookie, err := r.Cookie(s.stateCookie())
	if err != nil || subtle.ConstantTimeCompare([]byte(cookie.Value), []byte(query.Get("state"))) != 1 {
		http.Error(w, "this browser has not begun the login: open the dashboard and log in again", http.StatusBadRequest)
		return
	}
	token, err := s.cfg.OIDC.Finish(r.Context(), query)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	if _, err := s.bearer(r.Context(), token); err != nil {
		http.Error(w, err.Error()+"; it must be configured for the same provider and client ID", http.StatusUnauthorized)
		return
	}
	// Browsers do not send the fragment, so it does not appear in logs.
	http.Redirect(w, r, "/#token="+s.cfg.OIDC.Keep(token), http.StatusFound)
}
