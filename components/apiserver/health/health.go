// Package health answers /livez, /readyz and /healthz.
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

// Check is one thing that is looked at.
type Check struct {
	Name string
	// Look returns nil when all is well. It is given a few seconds.
	Look func(ctx context.Context) error
}

// Ping is always well.
func Ping() Check { return Check{"ping", func(context.Context) error { return nil }} }

// Closed is well once a channel is closed.
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

// Grace makes a check of c that is well until then, whatever c says.
func Grace(c Check, until time.Time) Check {
	return Check{c.Name, func(ctx context.Context) error {
		err := c.Look(ctx)
		if err != nil && time.Now().Before(until) {
			return nil
		}
		return err
	}}
}

// Handler answers below one path.
type Handler struct {
	path   string
	checks []Check
	log    *slog.Logger
}

// New makes the handler of path, such as "/livez". Log receives why a check
// failed, which clients are not told; it may be nil.
func New(path string, log *slog.Logger, checks ...Check) *Handler {
	if log == nil {
		log = slog.Default()
	}
	return &Handler{path: path, checks: checks, log: log}
}

// ServeHTTP looks at all checks, or at the one that the path names.
func (h *Handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	name := strings.TrimSuffix(h.path[1:], "/")
	if one, ok := strings.CutPrefix(req.URL.Path, h.path+"/"); ok {
		i := slices.IndexFunc(h.checks, func(c Check) bool { return c.Name == one })
		if i < 0 {
			http.Error(w, "404 page not found", http.StatusNotFound)
			return
		}
		if err := h.checks[i].Look(req.Context()); err != nil {
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
		if err := c.Look(req.Context()); err != nil {
			fmt.Fprintf(&out, "[-]%s failed: reason withheld\n", c.Name)
			failed = append(failed, c.Name)
			h.log.DebugContext(req.Context(), "health check failed", "path", h.path, "check", c.Name, "error", err)
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
