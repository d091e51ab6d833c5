package customresource

import (
	"bytes"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"sync"

	"k8s.io/client-go/util/jsonpath"
)

// path is a JSONPath of a selectable field or a printer column. Most paths are only a sequence of
// field names: they are evaluated without the JSONPath library, because its parsed paths are not
// safe for concurrent use.
type path struct {
	text string
	// names are the field names of a path that consists only of them. Nil means that the library
	// must evaluate the path.
	names []string
	// parsed contains *jsonpath.JSONPath values for reuse. Each is used by one goroutine at a time.
	parsed sync.Pool
}

// simplePath matches paths that consist only of field names, such as ".spec.size".
var simplePath = regexp.MustCompile(`^(\.[A-Za-z_][A-Za-z0-9_]*)+$`)

// parsePath parses a path, such as ".spec.size" or ".status.conditions[0].type". It returns an
// error for invalid syntax.
func parsePath(text string) (*path, error) {
	p := &path{text: text}
	if simplePath.MatchString(text) {
		p.names = splitPath(text)
		return p, nil
	}
	first, err := p.parse()
	if err != nil {
		return nil, err
	}
	p.parsed.Put(first)
	return p, nil
}

// parse parses the path with the JSONPath library, in such a way that a missing field is no error during evaluation.
func (p *path) parse() (*jsonpath.JSONPath, error) {
	j := jsonpath.New(p.text)
	j.AllowMissingKeys(true)
	if err := j.Parse("{" + p.text + "}"); err != nil {
		return nil, fmt.Errorf("unrecognized column definition %q: %w", p.text, err)
	}
	return j, nil
}

// find returns the first value at the path in an object. It returns false if there is none or the path cannot be
// evaluated.
func (p *path) find(content map[string]any) (any, bool) {
	if p.names != nil {
		var at any = content
		for _, name := range p.names {
			m, ok := at.(map[string]any)
			if !ok {
				return nil, false
			}
			if at, ok = m[name]; !ok {
				return nil, false
			}
		}
		return at, true
	}
	j, ok := p.parsed.Get().(*jsonpath.JSONPath)
	if !ok {
		var err error
		if j, err = p.parse(); err != nil {
			return nil, false
		}
	}
	results, err := j.FindResults(content)
	if err != nil {
		return nil, false // j may be in an intermediate state, so do not reuse it
	}
	p.parsed.Put(j)
	if len(results) == 0 || len(results[0]) == 0 || !results[0][0].CanInterface() {
		return nil, false
	}
	return results[0][0].Interface(), true
}

// formatValue formats the value of a printer column like the JSONPath library. It returns false if
// the value cannot be formatted.
func formatValue(value any) (string, bool) {
	if s, ok := value.(string); ok {
		return s, true
	}
	var out bytes.Buffer
	if err := jsonpath.New("").PrintResults(&out, []reflect.Value{reflect.ValueOf(value)}); err != nil {
		return "", false
	}
	return strings.TrimSpace(out.String()), true
}
