package strictyaml

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	strictjson "sigs.k8s.io/json"
)

// Error is an error at a position of a file.
type Error struct {
	// Position is FILE:LINE.
	Position string
	// Path is the path of the value in its document, for example "apiServer.extraArgs[0].name".
	Path string
	// Unknown is true if the field does not exist.
	Unknown bool
	Cause   error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("%s: %v", e.Position, e.Cause)
	}
	return fmt.Sprintf("%s: %s: %v", e.Position, e.Path, e.Cause)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Join returns the errors of Decode as one error, or nil if there are none.
func Join(errs []*Error) error {
	all := make([]error, len(errs))
	for i, err := range errs {
		all[i] = err
	}
	return errors.Join(all...)
}

// errUnknown is the cause of an Error about an unknown field.
var errUnknown = errors.New("unknown field")

// maxErrors is the number of errors after which Decode looks for no more.
const maxErrors = 20

// Decode decodes n into a new T by the rules of JSON; names of fields are case-sensitive. If n has unknown fields or
// values that T does not accept, it returns nil and an Error for each of them, or only for the first ones if there are
// more than maxErrors.
func Decode[T any](n *Node) (*T, []*Error) {
	out := new(T)
	unknown, err := strictjson.UnmarshalStrict(n.JSON(), out)
	if err == nil && len(unknown) == 0 {
		return out, nil
	}
	l := locator{decode: func(doc *Node) ([]error, error) { return strictjson.UnmarshalStrict(doc.JSON(), new(T)) }}
	l.find(n, "", func(only *Node) *Node { return only })
	return nil, l.errs
}

// unknownField returns the Error for an error about an unknown field, which contains its path. If err contains no path,
// the position is that of root.
func unknownField(root *Node, err error) *Error {
	_, quoted, _ := strings.Cut(err.Error(), "unknown field ")
	path, unquoteErr := strconv.Unquote(quoted)
	if unquoteErr != nil {
		return &Error{Position: root.Position(), Unknown: true, Cause: err}
	}
	return &Error{Position: locate(root, path), Path: path, Unknown: true, Cause: errUnknown}
}

// locate returns the position of the key at path. Keys may contain dots, so it tries all keys that path starts with. It returns
// the position of the closest parent if there is no such key.
func locate(n *Node, path string) string {
	best := n.Position()
	for _, f := range n.Fields {
		rest, ok := strings.CutPrefix(path, f.Key)
		switch {
		case !ok:
		case rest == "":
			return f.Position()
		case rest[0] == '.':
			best = locate(f.Value, rest[1:])
		case rest[0] == '[' && f.Value.Kind == List:
			index, after, _ := strings.Cut(rest[1:], "]")
			if i, err := strconv.Atoi(index); err == nil && i < len(f.Value.Items) {
				best = locate(f.Value.Items[i], strings.TrimPrefix(after, "."))
			}
		}
	}
	return best
}

// locator finds the values that cannot be decoded.
type locator struct {
	// decode decodes a document. It returns the errors about unknown fields, unless there is another error.
	decode func(*Node) (unknown []error, err error)
	errs   []*Error
}

// find adds an error for each field in n that is unknown and each value that cannot be decoded. It decodes documents that contain
// only one of them: wrap returns a document in which n, at path, is replaced and which has no other values.
func (l *locator) find(n *Node, path string, wrap func(*Node) *Node) {
	if len(l.errs) >= maxErrors {
		return
	}
	doc := wrap(n)
	unknown, err := l.decode(doc)
	if err == nil {
		for _, u := range unknown {
			l.errs = append(l.errs, unknownField(doc, u))
		}
		return
	}
	if n.Kind != Scalar {
		_, emptyErr := l.decode(wrap(&Node{Kind: n.Kind, File: n.File, Line: n.Line}))
		if emptyErr == nil && l.findInside(n, path, wrap) {
			return
		}
	}
	l.errs = append(l.errs, &Error{Position: n.Position(), Path: path, Cause: describeError(n, err)})
}

// maxPadding is the number of list items up to which paths in errors about unknown fields have the correct index.
const maxPadding = 100

// findInside calls find for each field or item of n, and reports whether that has added errors to l.errs. path is the
// path of n in the document. wrap returns a document that contains only its argument, at path.
func (l *locator) findInside(n *Node, path string, wrap func(*Node) *Node) bool {
	before := len(l.errs)
	for _, f := range n.Fields {
		inner := f.Key
		if path != "" {
			inner = path + "." + f.Key
		}
		l.find(f.Value, inner, func(only *Node) *Node {
			parent := *n
			parent.Fields = []Field{{Key: f.Key, File: f.File, Line: f.Line, Value: only}}
			return wrap(&parent)
		})
	}
	var padding []*Node // null does not change an item
	for i, item := range n.Items {
		l.find(item, fmt.Sprintf("%s[%d]", path, i), func(only *Node) *Node {
			parent := *n
			parent.Items = append(slices.Clip(padding), only)
			return wrap(&parent)
		})
		if i < maxPadding {
			padding = append(padding, &Node{})
		}
	}
	return len(l.errs) > before
}

// describeError rewrites an error of the JSON decoder about a value of the wrong type in the terms of YAML, with the
// advice to quote a value that must be a string. It returns other errors unchanged. n is the value in the document.
func describeError(n *Node, err error) error {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return err
	}
	text := fmt.Errorf("expected %s, got %s", describeType(wrong.Type), n.describe())
	if wrong.Type != nil && wrong.Type.Kind() == reflect.String && n.Kind == Scalar {
		return fmt.Errorf("%w: quote the value", text)
	}
	return text
}

// describeType returns the kind of value that a Go type accepts, in the terms of YAML. t may be nil.
func describeType(t reflect.Type) string {
	if t == nil {
		return "another type"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "an integer of " + strconv.Itoa(t.Bits()) + " bits"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a positive integer of " + strconv.Itoa(t.Bits()) + " bits"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "a mapping"
	default:
		return t.String()
	}
}
