package manifestdir

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// lineError is an error with the number of the line at which it occurs in the file.
type lineError struct {
	line int
	err  error
}

// Error implements error.
func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }

// Unwrap returns the cause.
func (e *lineError) Unwrap() error { return e.err }

// document is a YAML document and the number of its first line.
type document struct {
	line int
	text []byte
}

// split splits a file into documents, at lines that contain only "---".
func split(data []byte) []document {
	var out []document
	line, current := 0, document{line: 1}
	for text := range bytes.Lines(data) {
		line++
		if rest, found := bytes.CutPrefix(text, []byte("---")); found && len(bytes.TrimSpace(bytes.TrimLeft(rest, " \t"))) == 0 {
			out = append(out, current)
			current = document{line: line + 1}
			continue
		}
		current.text = append(current.text, text...)
	}
	return append(out, current)
}

// parse returns the objects of a YAML or JSON file, and the lines at which they begin. Errors are lineErrors. A file
// without objects, and two objects with the same name, are errors.
func parse(name string, data []byte) ([]*unstructured.Unstructured, map[*unstructured.Unstructured]int, error) {
	documents := []document{{line: 1, text: data}}
	if path.Ext(name) != ".json" {
		documents = split(data)
	}
	var objects []*unstructured.Unstructured
	lines := map[*unstructured.Unstructured]int{}
	for _, d := range documents {
		list, err := d.objects()
		if err != nil {
			return nil, nil, err
		}
		for _, obj := range list {
			lines[obj] = d.firstLine()
		}
		objects = append(objects, list...)
	}
	if len(objects) == 0 {
		return nil, nil, &lineError{1, errors.New("the file contains no objects: delete it to delete its former objects")}
	}
	return objects, lines, checkUnique(objects, func(obj *unstructured.Unstructured) int { return lines[obj] })
}

// firstLine returns the number of the first line that is neither empty nor a comment, or of the first line if there is
// none.
func (d document) firstLine() int {
	line := d.line
	for text := range bytes.Lines(d.text) {
		if text := bytes.TrimSpace(text); len(text) > 0 && text[0] != '#' {
			return line
		}
		line++
	}
	return d.line
}

// yamlError matches the first error with a line number in the text of an error of the YAML library. An error can
// have several lines of text.
var yamlError = regexp.MustCompile(`line (\d+): (.*)`)

// objects returns the objects of a document: none if it is empty, one, or the items of a List. Invalid syntax,
// duplicate keys, and objects without apiVersion, kind or name are errors.
func (d document) objects() ([]*unstructured.Unstructured, error) {
	var content map[string]any
	data, err := yaml.YAMLToJSONStrict(d.text)
	if err == nil {
		err = json.UnmarshalCaseSensitivePreserveInts(data, &content)
	}
	if err != nil {
		text, line := err.Error(), d.firstLine()
		if m := yamlError.FindStringSubmatch(text); m != nil {
			if n, convErr := strconv.Atoi(m[1]); convErr == nil {
				text, line = m[2], d.line+n-1
			}
		}
		for _, prefix := range []string{"error converting YAML to JSON: ", "error unmarshaling JSON: ", "yaml: "} {
			text = strings.TrimPrefix(text, prefix)
		}
		return nil, &lineError{line, errors.New(text)}
	}
	if len(content) == 0 {
		return nil, nil
	}
	obj := &unstructured.Unstructured{Object: content}
	if obj.GetAPIVersion() == "" || obj.GetKind() == "" {
		return nil, &lineError{d.firstLine(), errors.New("an object requires apiVersion and kind")}
	}
	if !obj.IsList() {
		if obj.GetName() == "" {
			return nil, &lineError{d.firstLine(), fmt.Errorf("%s has no metadata.name", obj.GetKind())}
		}
		return []*unstructured.Unstructured{obj}, nil
	}
	var out []*unstructured.Unstructured
	err = obj.EachListItem(func(item runtime.Object) error {
		u, ok := item.(*unstructured.Unstructured)
		if !ok || u.GetAPIVersion() == "" || u.GetKind() == "" || u.GetName() == "" {
			return &lineError{d.firstLine(), errors.New("an item of a list requires apiVersion, kind and metadata.name")}
		}
		out = append(out, u)
		return nil
	})
	return out, err
}

// checkUnique returns an error if two objects have the same kind, namespace and name.
func checkUnique(objects []*unstructured.Unstructured, line func(*unstructured.Unstructured) int) error {
	seen := map[string]*unstructured.Unstructured{}
	for _, obj := range objects {
		key := fmt.Sprintf("%s %s/%s", obj.GroupVersionKind().GroupKind(), obj.GetNamespace(), obj.GetName())
		if first := seen[key]; first != nil {
			return &lineError{line(obj), fmt.Errorf("%s %s is already defined at line %d", obj.GetKind(), obj.GetName(), line(first))}
		}
		seen[key] = obj
	}
	return nil
}
