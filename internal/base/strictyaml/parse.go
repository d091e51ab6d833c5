package strictyaml

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxNodes limits the number of values in a file, because aliases can multiply them. maxDepth limits how deeply they are nested.
const (
	maxNodes = 100_000
	maxDepth = 100
)

// Parse parses the documents of a file. name is the name of the file in errors. Empty documents are left out; all others are
// mappings. The error lists all duplicate keys and all values that cannot be expressed in JSON.
func Parse(name string, data []byte) ([]*Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	c := converter{file: name}
	var out []*Node
	for {
		var doc yaml.Node
		err := decode(decoder, &doc)
		if errors.Is(err, io.EOF) {
			return out, errors.Join(c.errs...)
		}
		if err != nil {
			return nil, errors.Join(append(c.errs, syntaxError(name, err))...)
		}
		if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
			continue
		}
		root := c.convert(doc.Content[0])
		switch {
		case c.count > maxNodes && len(c.errs) == 0:
			return nil, fmt.Errorf("%s: the file has more than %d values", name, maxNodes)
		case root.Kind == Scalar && root.Scalar == nil:
		case root.Kind != Mapping:
			c.fail(root.Line, "expected keys and values, got %s", root.describe())
		default:
			out = append(out, root)
		}
	}
}

// decode decodes the next document. It returns an error if the library panics, as it does on some invalid documents,
// and io.EOF at the end of the file.
func decode(decoder *yaml.Decoder, doc *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("invalid document: %v", r)
		}
	}()
	return decoder.Decode(doc)
}

// syntaxLine matches the position in a syntax error of the library.
var syntaxLine = regexp.MustCompile(`^yaml: line (\d+): `)

// syntaxError returns an error with the text of err, a syntax error of the library, and its position, if err contains
// one.
func syntaxError(file string, err error) error {
	text := err.Error()
	if m := syntaxLine.FindStringSubmatch(text); m != nil {
		return fmt.Errorf("%s:%s: %s", file, m[1], strings.TrimPrefix(text, m[0]))
	}
	return fmt.Errorf("%s: %s", file, strings.TrimPrefix(text, "yaml: "))
}

// converter converts nodes of the library.
type converter struct {
	file         string
	count, depth int
	errs         []error
}

// fail records an error at a line of the file.
func (c *converter) fail(line int, format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf("%s: %s", position(c.file, line), fmt.Sprintf(format, args...)))
}

// convert returns the Node for n. It records errors in c.errs and then returns a partial Node. After maxNodes values,
// or in more than maxDepth levels, it converts no more.
func (c *converter) convert(n *yaml.Node) *Node {
	out := &Node{File: c.file, Line: n.Line}
	if c.count++; c.count > maxNodes {
		return out
	}
	c.depth++
	defer func() { c.depth-- }()
	if c.depth > maxDepth {
		c.fail(n.Line, "values are nested in more than %d levels", maxDepth)
		c.count = maxNodes // stop
		return out
	}
	switch n.Kind {
	case yaml.AliasNode:
		return c.convert(n.Alias)
	case yaml.SequenceNode:
		out.Kind = List
		for _, item := range n.Content {
			out.Items = append(out.Items, c.convert(item))
		}
	case yaml.MappingNode:
		out.Kind = Mapping
		seen := make(map[string]int, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], c.convert(n.Content[i+1])
			switch {
			case key.Kind != yaml.ScalarNode:
				c.fail(key.Line, "a key must be a string")
			case key.ShortTag() == "!!merge":
				c.fail(key.Line, "merge keys (<<) are not supported")
			case seen[key.Value] > 0:
				c.fail(key.Line, "key %q is already set in line %d", key.Value, seen[key.Value])
			default:
				seen[key.Value] = key.Line
				out.Fields = append(out.Fields, Field{Key: key.Value, File: c.file, Line: key.Line, Value: value})
			}
		}
	default:
		var err error
		if out.Scalar, err = scalar(n); err != nil {
			c.fail(n.Line, "%v", err)
		}
	}
	return out
}

// scalar returns the value of a scalar node: nil, a bool, a json.Number or a string. It returns an error for numbers
// that JSON cannot represent and for other tags, such as !!binary.
func scalar(n *yaml.Node) (any, error) {
	switch n.ShortTag() {
	case "!!null":
		return nil, nil
	case "!!bool":
		var v bool
		err := n.Decode(&v)
		return v, err
	case "!!int":
		var signed int64
		if err := n.Decode(&signed); err == nil {
			return json.Number(strconv.FormatInt(signed, 10)), nil
		}
		var v uint64
		if err := n.Decode(&v); err != nil {
			return nil, fmt.Errorf("number %s is out of range", n.Value)
		}
		return json.Number(strconv.FormatUint(v, 10)), nil
	case "!!float":
		var v float64
		if err := n.Decode(&v); err != nil || math.IsInf(v, 0) || math.IsNaN(v) {
			return nil, fmt.Errorf("%s is not a number", n.Value)
		}
		text, err := json.Marshal(v)
		return json.Number(text), err
	case "!!str", "!!timestamp":
		return n.Value, nil
	}
	return nil, fmt.Errorf("tag %s is not supported", n.ShortTag())
}
