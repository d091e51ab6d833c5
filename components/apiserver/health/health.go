// Package health serves /livez, /readyz and /healthz.
//
// https://kubernetes.io/docs/reference/using-api/health-checks/
package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Check is a named health check. Its name is that in /healthz, /livez or /readyz.
type Check struct {
	Name string
	// Probe returns nil if the check passes. ctx is that of the HTTP request.
	Probe func(ctx context.Context) error
}

// Ping returns a check that always passes. It shows that the server responds at all.
func Ping() Check { return Check{"ping", func(context.Context) error { return nil }} }

// Closed returns a check with the name that passes once the channel done is closed.
func Closed(name string, done <-chan struct{}) Check {
	return Check{name, func(context.Context) error {
		select {
		case <-done:
			return nil
		default:
			return errors.New("not finished")
		}
	}}
}

// Grace returns a check that passes until the time until, whatever the result of c is, and then has the result of c.
func Grace(c Check, until time.Time) Check {
	return Check{c.Name, func(ctx context.Context) error {
		err := c.Probe(ctx)
		if err != nil && time.Now().Before(until) {
			return nil
		}
		return err
	}}
}

// Handler serves one health endpoint and its individual checks below it.
type Handler struct {
	path   string
	checks []Check
	log    *slog.Logger
}

// New returns the handler of a health endpoint with the path, such as "/livez". log receives the
// reasons of failures, which clients do not see. It may be nil.
func New(path string, log *slog.Logger, checks ...Check) *Handler {
	if log == nil {
		log = slog.Default()
	}
	return &Handler{path: path, checks: checks, log: log}
}

// ServeHTTP runs all checks, except those in the query parameter exclude, or only the one that the path names. It
// responds with "ok" or, if the query contains verbose, with a list; with 500 and a list if one fails; and with 404
// if the path names an unknown check.
func (h *Handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	name := strings.TrimSuffix(h.path[1:], "/")
	if one, ok := strings.CutPrefix(req.URL.Path, h.path+"/"); ok {
		i := slices.IndexFunc(h.checks, func(c Check) bool { return c.Name == one })
		if i < 0 {
			http.Error(w, "404 page not found", http.StatusNotFound)
			return
		}
		if err := h.checks[i].Probe(req.Context()); err != nil {
			http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, "ok")
		return
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	query := req.URL.Query()
	excluded := map[string]bool{}
	for _, v := range query["exclude"] {
		excluded[v] = true
	}
	var out strings.Builder
	var failed []string
	for _, c := range h.checks {
		if excluded[c.Name] {
			delete(excluded, c.Name)
			fmt.Fprintf(&out, "[+]%s excluded: ok\n", c.Name)
			continue
		}
		if err := c.Probe(req.Context()); err != nil {
			fmt.Fprintf(&out, "[-]%s failed: reason withheld\n", c.Name)
			failed = append(failed, c.Name)
			h.log.DebugContext(req.Context(), "health check of the API server failed, responding with 500", "path", h.path, "check", c.Name, "err", err)
			continue
		}
		fmt.Fprintf(&out, "[+]%s ok\n", c.Name)
	}
	if len(excluded) > 0 {
		names := make([]string, 0, len(excluded))
		for n := range excluded {
			names = append(names, fmt.Sprintf("%q", n))
		}
		slices.Sort(names)
		fmt.Fprintf(&out, "warn: some health checks cannot be excluded: no matches for %s\n", strings.Join(names, ", "))
	}
	if len(failed) > 0 {
		http.Error(w, fmt.Sprintf("%s%s check failed", out.String(), name), http.StatusInternalServerError)
		return
	}
	if !query.Has("verbose") {
		fmt.Fprint(w, "ok")
		return
	}
	fmt.Fprintf(w, "%s%s check passed\n", out.String(), name)
}
