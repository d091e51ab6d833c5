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

// path is a JSON path. Most are but names in a row and are followed without
// the library, whose parsed paths cannot be shared by goroutines.
type path struct {
	text string
	// names, unless nil, is all of it.
	names []string
	// parsed has *jsonpath.JSONPath.
	parsed sync.Pool
}

var simplePath = regexp.MustCompile(`^(\.[A-Za-z_][A-Za-z0-9_]*)+$`)

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

func (p *path) parse() (*jsonpath.JSONPath, error) {
	j := jsonpath.New(p.text)
	j.AllowMissingKeys(true)
	if err := j.Parse("{" + p.text + "}"); err != nil {
		return nil, fmt.Errorf("unrecognized column definition %q: %w", p.text, err)
	}
	return j, nil
}

// find returns the first value at the path; false if there is none.
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
		return nil, false // it may be in the middle of something; not kept
	}
	p.parsed.Put(j)
	if len(results) == 0 || len(results[0]) == 0 || !results[0][0].CanInterface() {
		return nil, false
	}
	return results[0][0].Interface(), true
}

// printed is how the library prints a value.
func printed(value any) (string, bool) {
	if s, ok := value.(string); ok {
		return s, true
	}
	var out bytes.Buffer
	if err := jsonpath.New("").PrintResults(&out, []reflect.Value{reflect.ValueOf(value)}); err != nil {
		return "", false
	}
	return strings.TrimSpace(out.String()), true
}
