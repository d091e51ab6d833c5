// Package upconfig reads the configuration files of `up`: /etc/hyperkube/config.yaml and its drop-in files, or the file of
// `up --config`. A file contains up to six documents:
//
//   - UpConfiguration of hyperkube.io/v1alpha1, whose keys are the flags of `up`
//   - ClusterConfiguration of kubeadm, with extra arguments of the control plane components
//   - KubeletConfiguration, KubeProxyConfiguration and KubeSchedulerConfiguration of Kubernetes
//   - TracingConfiguration of Kubernetes, which here configures the traces of all components that have traces
//
// Load rejects everything that would have no effect, with the file and the line. It parses extra arguments with the flags of the
// components, so that `up` only applies the result. running.go stores the configuration of a running cluster, so that the next `up`
// detects changes.
package upconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"hyperkube/internal/base/strictyaml"
	"hyperkube/internal/host/layout"
)

// Config is the content of the configuration files. The zero value is that of a machine without files.
type Config struct {
	// Files are the files that were read. Later ones take precedence.
	Files []string
	// CertSANs are additional names and addresses in the serving certificate of the API server.
	CertSANs   []string
	Components Components

	// settings are the values of the flags of `up`, by flag name.
	settings map[string]setting
	// documents are the merged documents by kind.
	documents map[string]*strictyaml.Node
}

// DefaultFile returns the configuration file that `up` reads without --config.
func DefaultFile(l layout.Node) string { return l.ConfigFile("config.yaml") }

// Load reads file and its drop-in files, which are the files *.yaml in the directory FILE.d in lexical order. If file is "", it reads
// the default file, which may be missing. newFlags returns a new set of the flags of `up`, with which the keys are validated; it is
// only called if there is a file. The error lists all problems.
func Load(l layout.Node, file string, newFlags func() *pflag.FlagSet) (*Config, error) {
	optional := file == ""
	if optional {
		file = DefaultFile(l)
	}
	paths, err := listFiles(file, optional)
	if err != nil {
		return nil, err
	}
	c := &Config{Files: paths}
	if len(paths) == 0 {
		return c, nil
	}
	r := reader{flags: newFlags(), merged: map[string]*strictyaml.Node{}}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading the configuration: %w", err)
		}
		r.readFile(path, data)
	}
	if err := errors.Join(r.errs...); err != nil {
		return nil, err
	}
	return c, r.build(c)
}

// listFiles returns those of file and its drop-in files that exist. It is an error if file is missing, unless optional
// is set.
func listFiles(file string, optional bool) ([]string, error) {
	var paths []string
	switch _, err := os.Stat(file); {
	case err == nil:
		paths = append(paths, file)
	case !optional || !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	entries, err := os.ReadDir(file + ".d")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".yaml") && !e.IsDir() {
			paths = append(paths, filepath.Join(file+".d", e.Name()))
		}
	}
	return paths, nil
}

// reader reads the configuration files of `up`: it merges their documents by kind, and collects the errors in them.
type reader struct {
	flags *pflag.FlagSet
	// merged are the documents by kind. Fields of a later file replace those of earlier ones.
	merged map[string]*strictyaml.Node
	errs   []error
}

// fail adds an error at a position, which is a file and a line.
func (r *reader) fail(position, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s: %s", position, fmt.Sprintf(format, args...)))
}

// readFile validates the documents of a file and merges them with those of earlier files. A second document of the same
// kind in one file is an error.
func (r *reader) readFile(path string, data []byte) {
	docs, err := strictyaml.Parse(path, data)
	if err != nil {
		r.errs = append(r.errs, err)
		return
	}
	seen := map[string]*strictyaml.Node{}
	for _, doc := range docs {
		k, ok := r.kindOf(doc)
		if !ok {
			continue
		}
		if first := seen[k.kind]; first != nil {
			r.fail(doc.Position(), "%s: the file already has a document of this kind in line %d", k.kind, first.Line)
			continue
		}
		seen[k.kind] = doc
		k.check(r, doc)
		r.merged[k.kind] = strictyaml.Merge(r.merged[k.kind], doc)
	}
}

// build sets the fields of c from the merged documents, and returns all errors.
func (r *reader) build(c *Config) error {
	c.documents = r.merged
	r.buildSettings(c)
	r.buildCluster(c)
	r.buildComponents(c)
	return errors.Join(r.errs...)
}
