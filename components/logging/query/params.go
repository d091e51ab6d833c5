package query

import (
	"fmt"
	"net/url"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"hyperkube/components/logging/store"
)

// Params are the parameters of a search, as clients send them.
type Params struct {
	// NodeLogs selects the log files of nodes instead of the logs of containers.
	NodeLogs bool
	// Namespace is empty for all namespaces.
	Namespace string
	// Pod, Container, File and Node are names. Empty fields select all.
	Pod, Container, File, Node string
	// Selector is a label selector for pods.
	Selector string
	// Since and Until are the half-open range of times. Zero values mean no limit.
	Since, Until time.Time
	// Grep is a regular expression for the text.
	Grep string
	// Tail selects only the newest records. Zero selects all.
	Tail int
	// Follow means that new records are sent as they appear.
	Follow bool
}

// maxTail is the largest value of Tail, because these records are collected in memory.
const maxTail = 100_000

// ParseParams returns the parameters in the query of a URL. The namespace is part of the path.
func ParseParams(v url.Values) (Params, error) {
	p := Params{
		Pod: v.Get("pod"), Container: v.Get("container"), File: v.Get("file"), Node: v.Get("node"), Selector: v.Get("labelSelector"), Grep: v.Get("grep"),
	}
	var err error
	for name, at := range map[string]*time.Time{"sinceTime": &p.Since, "untilTime": &p.Until} {
		if text := v.Get(name); text != "" {
			if *at, err = time.Parse(time.RFC3339Nano, text); err != nil {
				return Params{}, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	if text := v.Get("tailLines"); text != "" {
		if p.Tail, err = strconv.Atoi(text); err != nil || p.Tail < 1 || p.Tail > maxTail {
			return Params{}, fmt.Errorf("tailLines: %q is not a number from 1 to %d", text, maxTail)
		}
	}
	if text := v.Get("watch"); text != "" {
		if p.Follow, err = strconv.ParseBool(text); err != nil {
			return Params{}, fmt.Errorf("watch: %w", err)
		}
	}
	_, err = p.query()
	return p, err
}

// Values returns the parameters as the query of a URL.
func (p Params) Values() url.Values {
	v := url.Values{}
	for name, text := range map[string]string{
		"pod": p.Pod, "container": p.Container, "file": p.File, "node": p.Node, "labelSelector": p.Selector, "grep": p.Grep,
	} {
		if text != "" {
			v.Set(name, text)
		}
	}
	for name, at := range map[string]time.Time{"sinceTime": p.Since, "untilTime": p.Until} {
		if !at.IsZero() {
			v.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	if p.Tail > 0 {
		v.Set("tailLines", strconv.Itoa(p.Tail))
	}
	if p.Follow {
		v.Set("watch", "true")
	}
	return v
}

// query returns the query of the store. Its error can be shown to the user.
func (p Params) query() (store.Query, error) {
	q := store.Query{NodeFiles: p.NodeLogs, Namespace: p.Namespace, Pod: p.Pod, Container: p.Container, File: p.File, Tail: p.Tail}
	var err error
	if p.Selector != "" {
		if q.Labels, err = labels.Parse(p.Selector); err != nil {
			return q, fmt.Errorf("labelSelector: %w", err)
		}
	}
	if p.Grep != "" {
		if q.Text, err = store.NewPattern(p.Grep); err != nil {
			return q, err
		}
	}
	if !p.Since.IsZero() {
		q.Since = p.Since.UnixNano()
	}
	if !p.Until.IsZero() {
		q.Until = p.Until.UnixNano()
	}
	return q, nil
}
