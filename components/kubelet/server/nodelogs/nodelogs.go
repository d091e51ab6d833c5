// Package nodelogs serves the logs of a node: files below a directory and, if enabled, queries for
// the logs of services by name, which come from the journal or from files named after the service.
//
// https://kubernetes.io/docs/concepts/cluster-administration/system-logs/#log-query
package nodelogs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"
)

// queryTimeout is how long a log query may take.
const queryTimeout = 30 * time.Second

// Journal runs journalctl with arguments and writes its standard output and standard error to out. Its error
// is an *exec.ExitError, or an error of starting the command.
type Journal func(ctx context.Context, out io.Writer, args ...string) error

// Journalctl runs the host's journalctl with args and writes its output to out. It is the Journal that the kubelet
// uses; tests use another one.
func Journalctl(ctx context.Context, out io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, "journalctl", args...)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd.Run()
}

// Files returns a handler that serves the files below dir. The request's path is relative to dir.
func Files(dir string) http.Handler { return http.FileServer(http.Dir(dir)) }

// Queries returns a handler that serves files like Files, and queries for the logs of services with journal.
// A request with parameters of a query is a query; an invalid one gets an error response.
func Queries(dir string, journal Journal) http.Handler {
	files := Files(dir)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q, err := parse(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if q == nil {
			files.ServeHTTP(w, r)
			return
		}
		if r.URL.Path != "/" && r.URL.Path != "" {
			http.Error(w, "path not allowed in query mode", http.StatusNotAcceptable)
			return
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer func() { _ = root.Close() }()
		if err := q.check(root); err != nil {
			http.Error(w, err.Error(), http.StatusNotAcceptable)
			return
		}
		if len(q.files) == 1 {
			r = r.Clone(r.Context())
			r.URL.Path = relativePath(q.files[0])
			files.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
		defer cancel()
		w.Header().Set("Content-Type", "text/plain;charset=UTF-8")
		q.write(ctx, w, root, journal)
	})
}

// write writes the logs of the services of the query to w: from the journal if it has a unit of that name,
// otherwise from a file below root. Without a journal, all services are looked up as files. Files cannot be
// filtered: with options, an error is written instead. Errors are written to w.
func (q *query) write(ctx context.Context, w io.Writer, root *os.Root, journal Journal) {
	var native, filed []string
	var units strings.Builder
	// Without a journal, all services are looked up as files.
	if err := journal(ctx, &units, "--field", "_SYSTEMD_UNIT"); err != nil {
		units.Reset()
	}
	for _, s := range q.services {
		if strings.Contains(units.String(), s+".service") {
			native = append(native, s)
		} else {
			filed = append(filed, s)
		}
	}
	if len(native) > 0 {
		var exit *exec.ExitError
		if err := journal(ctx, w, q.arguments(native)...); err != nil && !errors.As(err, &exit) && (q.boot == nil || *q.boot == 0) {
			fmt.Fprint(w, "\nerror: journal output not available\n")
		}
	}
	if len(filed) > 0 && q.any() {
		fmt.Fprintf(w, "\noptions present and query resolved to log files for %v\ntry without specifying options\n", filed)
		return
	}
	for _, s := range filed {
		if err := copyFile(ctx, w, root, s, s+".log", s+"/"+s+".log"); errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(w, "\nlog not found for %s\n", s)
		} else if err != nil {
			fmt.Fprintf(w, "\nerror getting log for %s: %v\n", s, err)
		}
	}
}

// copyFile writes the first of names that is an existing file below root to w, until ctx is done. It returns
// fs.ErrNotExist if there is none.
func copyFile(ctx context.Context, w io.Writer, root *os.Root, names ...string) error {
	for _, name := range names {
		info, err := root.Stat(name)
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir() {
			continue
		}
		if err != nil {
			return err
		}
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, reader(func(b []byte) (int, error) {
			if err := ctx.Err(); err != nil {
				return 0, err
			}
			return f.Read(b)
		}))
		return err
	}
	return fs.ErrNotExist
}

// reader is a function that implements io.Reader.
type reader func([]byte) (int, error)

func (r reader) Read(b []byte) (int, error) { return r(b) }
