// Package settings reads the configuration of log collection: rules for records, and sinks.
package settings

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"hyperkube/components/logging/record"
	"hyperkube/internal/base/strictyaml"
)

// Settings is the configuration of log collection.
type Settings struct {
	// Multiline are rules that join lines to records. The first one that selects a source applies.
	Multiline []Multiline `json:"multiline,omitempty"`
	// Drop are rules for records that are not stored.
	Drop []Rule `json:"drop,omitempty"`
	// Redact are rules that replace text. They apply in their order.
	Redact []Redaction `json:"redact,omitempty"`
	// Sinks are the servers and files to which records are sent.
	Sinks []Sink `json:"sinks,omitempty"`

	source string
}

// Source returns the text that the settings were parsed from.
func (s *Settings) Source() string { return s.source }

// Selector selects sources of records. Empty fields select all.
type Selector struct {
	Namespace string `json:"namespace,omitempty"`
	Container string `json:"container,omitempty"`
	// Labels is a label selector for pods, as text.
	Labels string `json:"labels,omitempty"`

	labels labels.Selector
}

// Multiline joins lines to records.
type Multiline struct {
	Selector `json:",inline"`
	// Start is a regular expression that matches the first line of each record.
	Start string `json:"start"`

	start *regexp.Regexp
}

// Rule selects records.
type Rule struct {
	Selector `json:",inline"`
	// Match is a regular expression that matches the text. Empty matches every record.
	Match string `json:"match,omitempty"`

	match *regexp.Regexp
}

// Redaction replaces text of records before they are stored.
type Redaction struct {
	Selector `json:",inline"`
	// Match is a regular expression for the text to replace.
	Match string `json:"match"`
	// Replace is the new text. It may refer to groups of Match, as $1 or ${name}.
	Replace string `json:"replace"`

	match *regexp.Regexp
}

// The types of sinks.
const (
	OTLP          = "otlp"
	Loki          = "loki"
	Elasticsearch = "elasticsearch"
	File          = "file"
)

// Sink is a server or a file to which records are sent.
type Sink struct {
	// Name identifies the sink in metrics and messages, and its progress on the disk.
	Name string `json:"name"`
	// Type is otlp, loki, elasticsearch (also for OpenSearch) or file.
	Type string `json:"type"`
	// URL is the URL to which requests are sent, for example http://loki:3100/loki/api/v1/push. Sinks of the type file have none.
	URL string `json:"url,omitempty"`
	// Headers are sent with each request.
	Headers map[string]string `json:"headers,omitempty"`
	// HeaderFiles are headers whose values are in files, for example keys of the Secret hyperkube-logging.
	HeaderFiles map[string]string `json:"headerFiles,omitempty"`
	// CAFile has the certificates that verify the server. If it is empty, those of the image are used.
	CAFile string `json:"caFile,omitempty"`
	// Index is the index or data stream of Elasticsearch. Empty means logs-hyperkube.
	Index string `json:"index,omitempty"`
	// MaxBytes is the size of a file from which on it is rotated; one older file is kept. Zero means 100 MB.
	MaxBytes int64 `json:"maxBytes,omitempty"`
	// Select selects the sources whose records are sent. Empty selects all.
	Select Selector `json:"select,omitempty"`
	// NodeLogs means that the logs of the nodes are sent too.
	NodeLogs bool `json:"nodeLogs,omitempty"`
}

// sinkName matches valid names of sinks.
var sinkName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// Parse parses and validates the configuration in YAML. name is the name of the file in errors. An empty file has no rules and no sinks. Unknown
// fields are errors.
func Parse(name string, data []byte) (*Settings, error) {
	docs, err := strictyaml.Parse(name, data)
	if err != nil {
		return nil, err
	}
	if len(docs) == 0 {
		return &Settings{source: string(data)}, nil
	}
	if len(docs) > 1 {
		return nil, fmt.Errorf("%s: more than one document", docs[1].Position())
	}
	s, invalid := strictyaml.Decode[Settings](docs[0])
	if err := strictyaml.Join(invalid); err != nil {
		return nil, err
	}
	var errs []error
	s.source = string(data)
	check := func(field string, i int, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %s[%d]: %w", name, field, i, err))
		}
	}
	for i := range s.Multiline {
		m := &s.Multiline[i]
		check("multiline", i, m.compile())
		m.start, err = compile("start", m.Start, true)
		check("multiline", i, err)
	}
	for i := range s.Drop {
		d := &s.Drop[i]
		check("drop", i, d.compile())
		d.match, err = compile("match", d.Match, false)
		check("drop", i, err)
		if d.Match == "" && d.Selector == (Selector{labels: d.labels}) {
			check("drop", i, errors.New("a rule without match and without selector would drop all records"))
		}
	}
	for i := range s.Redact {
		r := &s.Redact[i]
		check("redact", i, r.compile())
		r.match, err = compile("match", r.Match, true)
		check("redact", i, err)
	}
	var names []string
	for i := range s.Sinks {
		k := &s.Sinks[i]
		check("sinks", i, k.validate())
		if slices.Contains(names, k.Name) {
			check("sinks", i, fmt.Errorf("name %q is used twice", k.Name))
		}
		names = append(names, k.Name)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return s, nil
}

func compile(field, expr string, required bool) (*regexp.Regexp, error) {
	if expr == "" {
		if required {
			return nil, fmt.Errorf("%s is required", field)
		}
		return nil, nil
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return re, nil
}

func (s *Selector) compile() error {
	if s.Labels == "" {
		return nil
	}
	var err error
	if s.labels, err = labels.Parse(s.Labels); err != nil {
		return fmt.Errorf("labels: %w", err)
	}
	return nil
}

// Matches reports whether the selector selects the source.
func (s *Selector) Matches(src *record.Source) bool {
	return (s.Namespace == "" || s.Namespace == src.Namespace) && (s.Container == "" || s.Container == src.Container) &&
		(s.labels == nil || s.labels.Matches(labels.Set(src.Labels)))
}

func (k *Sink) validate() error {
	if !sinkName.MatchString(k.Name) {
		return fmt.Errorf("name %q must consist of lowercase letters, digits and hyphens", k.Name)
	}
	if err := k.Select.compile(); err != nil {
		return fmt.Errorf("select: %w", err)
	}
	switch k.Type {
	case File:
		if k.URL != "" || k.MaxBytes < 0 {
			return errors.New("a file has no url, and maxBytes must not be negative")
		}
		return nil
	case OTLP, Loki, Elasticsearch:
		u, err := url.Parse(k.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return fmt.Errorf("url %q must be an HTTP or HTTPS URL", k.URL)
		}
		return nil
	}
	return fmt.Errorf("type %q is unknown: use %s, %s, %s or %s", k.Type, OTLP, Loki, Elasticsearch, File)
}

// Selects reports whether records of the source are sent to the sink.
func (k *Sink) Selects(src *record.Source) bool {
	return (src.File == "" || k.NodeLogs) && k.Select.Matches(src)
}

// Pipeline applies the rules to the records of one source.
type Pipeline struct {
	start  *regexp.Regexp
	drop   []*regexp.Regexp // nil elements match everything
	redact []Redaction
}

// For returns the Pipeline of a source. start, if it is not nil, matches the first line of each record, and takes precedence over the rules.
func (s *Settings) For(src *record.Source, start *regexp.Regexp) *Pipeline {
	p := &Pipeline{start: start}
	for i := range s.Multiline {
		if m := &s.Multiline[i]; p.start == nil && m.Matches(src) {
			p.start = m.start
		}
	}
	for i := range s.Drop {
		if d := &s.Drop[i]; d.Matches(src) {
			p.drop = append(p.drop, d.match)
		}
	}
	for i := range s.Redact {
		if s.Redact[i].Matches(src) {
			p.redact = append(p.redact, s.Redact[i])
		}
	}
	return p
}

// Start returns the regular expression for the first line of each record, or nil if each line is a record.
func (p *Pipeline) Start() *regexp.Regexp { return p.start }

// Apply returns the text to store for a record, or false if the record is not stored.
func (p *Pipeline) Apply(text []byte) ([]byte, bool) {
	for _, re := range p.drop {
		if re == nil || re.Match(text) {
			return nil, false
		}
	}
	for i := range p.redact {
		if r := &p.redact[i]; r.match.Match(text) {
			text = r.match.ReplaceAll(text, []byte(r.Replace))
		}
	}
	return text, true
}
