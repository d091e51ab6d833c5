package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// This file is the format of the tables, as in tables_test.go and tableobjects_test.go of the catalog.
// This module cannot import hyperkube, which would change the versions of upstream's dependencies.
// TestFormat checks that both write the same text.

// table is a test data file: an object and the results of variations of it. The recorded results
// are those of the upstream API server.
type table struct {
	// Base is the base object.
	Base json.RawMessage `json:"base"`
	// Apart are paths of members that are not set by the kind's own rules, such as allocated
	// addresses. A single name matches the last element of a path.
	Apart []string    `json:"apart,omitempty"`
	Cases []tableCase `json:"cases"`
}

// tableCase is a test case with its expected result. Exactly one of Create, Update and Row is set.
// They are patches of the base: merge patches or lists of JSON patch operations, which expand
// resolves.
type tableCase struct {
	Name string `json:"name"`
	// Create is the patch of the base for a create request.
	Create json.RawMessage `json:"create,omitempty"`
	// Was is the patch of the base for the stored object of an Update.
	Was json.RawMessage `json:"was,omitempty"`
	// Update is the patch of the stored object for an update request.
	Update json.RawMessage `json:"update,omitempty"`
	// To is the subresource of the update request.
	To string `json:"to,omitempty"`
	// Row is the patch of the base for a table row.
	Row json.RawMessage `json:"row,omitempty"`

	Errors   []string `json:"errors,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	// Becomes is a merge patch from the sent to the stored object.
	Becomes json.RawMessage `json:"becomes,omitempty"`
	// Cells maps column names to cells.
	Cells map[string]any `json:"cells,omitempty"`
}

// result is what a server returned for a case. Its fields are those of tableCase with the same
// names.
type result struct {
	errors, warnings []string
	becomes          json.RawMessage
	cells            map[string]any
}

// readTable reads the table in the file name. Unknown fields are an error.
func readTable(name string) (*table, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	tab := &table{}
	if err := yaml.UnmarshalStrict(text, tab); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return tab, nil
}

// diff describes how a result differs from the expected one of the case, or returns "" if it does not. The stored
// object is only compared if no errors were returned or expected.
func (c *tableCase) diff(got result) string {
	var b strings.Builder
	lines := func(what string, got, want []string) {
		if !slices.Equal(got, want) {
			fmt.Fprintf(&b, "%s:\n  %s\nwant:\n  %s\n", what, abbreviate(strings.Join(got, "\n  ")), abbreviate(strings.Join(want, "\n  ")))
		}
	}
	wanted := make([]string, len(c.Errors))
	for i, text := range c.Errors {
		wanted[i] = repeat(text)
	}
	lines("errors", got.errors, wanted)
	lines("warnings", got.warnings, c.Warnings)
	if len(got.errors) == 0 && len(c.Errors) == 0 && !sameJSON(got.becomes, c.Becomes) {
		fmt.Fprintf(&b, "becomes:\n  %s\nwant:\n  %s\n", got.becomes, c.Becomes)
	}
	if !reflect.DeepEqual(got.cells, c.Cells) {
		fmt.Fprintf(&b, "cells:\n  %v\nwant:\n  %v\n", got.cells, c.Cells)
	}
	return b.String()
}

// sameJSON compares two patches. An empty patch equals one that changes nothing.
func sameJSON(a, b json.RawMessage) bool {
	var x, y map[string]any
	if len(a) > 0 && json.Unmarshal(a, &x) != nil || len(b) > 0 && json.Unmarshal(b, &y) != nil {
		return false
	}
	return len(x) == 0 && len(y) == 0 || reflect.DeepEqual(x, y)
}

// rewritten returns the text of a table's file after the cases whose indexes are in changed were
// updated. old is the present text. Other cases keep their text, which may have been edited
// manually.
func (tab *table) rewritten(old []byte, changed map[int]bool) []byte {
	head, blocks := split(old)
	if len(blocks) != len(tab.Cases) {
		return tab.text()
	}
	_, updated := split(tab.text())
	out := slices.Clone(head)
	for i, block := range blocks {
		if changed[i] {
			block = updated[i]
		}
		out = append(out, block...)
	}
	return out
}

// split splits the text of a table's file into the part before the first case, and the text of each
// case.
func split(text []byte) (head []byte, cases [][]byte) {
	inCases := false
	for line := range bytes.Lines(text) {
		switch {
		case inCases && bytes.HasPrefix(line, []byte("- ")):
			cases = append(cases, slices.Clone(line))
		case len(cases) > 0:
			cases[len(cases)-1] = append(cases[len(cases)-1], line...)
		default:
			inCases = inCases || bytes.HasPrefix(line, []byte("cases:"))
			head = append(head, line...)
		}
	}
	return head, cases
}

// text formats the table in the format of its file: the base as YAML, and the fields of cases as
// one line of JSON each.
func (tab *table) text() []byte {
	var b bytes.Buffer
	line := func(indent, name string, v any) {
		var one bytes.Buffer
		enc := json.NewEncoder(&one)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(v); err != nil {
			panic(err) // it was decoded from JSON
		}
		fmt.Fprintf(&b, "%s%s: %s", indent, name, one.Bytes())
	}
	base, err := yaml.JSONToYAML(tab.Base)
	if err != nil {
		panic(err)
	}
	b.WriteString("base:\n")
	for l := range strings.Lines(string(base)) {
		b.WriteString("  " + l)
	}
	if len(tab.Apart) > 0 {
		line("", "apart", tab.Apart)
	}
	b.WriteString("cases:\n")
	for i := range tab.Cases {
		c := &tab.Cases[i]
		line("- ", "name", c.Name)
		for _, p := range []struct {
			name string
			text json.RawMessage
		}{{"create", c.Create}, {"was", c.Was}, {"update", c.Update}, {"row", c.Row}} {
			if p.text != nil {
				line("  ", p.name, p.text)
			}
		}
		if c.To != "" {
			line("  ", "to", c.To)
		}
		for _, list := range []struct {
			name  string
			texts []string
		}{{"errors", c.Errors}, {"warnings", c.Warnings}} {
			if len(list.texts) > 0 {
				b.WriteString("  " + list.name + ":\n")
				for _, text := range list.texts {
					text = abbreviate(text)
					one, err := yaml.Marshal(text)
					if err != nil || bytes.Count(one, []byte("\n")) > 1 {
						one, _ = json.Marshal(text)
						one = append(one, '\n')
					}
					b.WriteString("  - " + string(one))
				}
			}
		}
		if len(c.Errors) == 0 && c.Becomes != nil && string(c.Becomes) != "{}" {
			line("  ", "becomes", c.Becomes)
		}
		if c.Cells != nil {
			line("  ", "cells", c.Cells)
		}
	}
	return b.Bytes()
}

// variant returns the object base with a patch of a case applied: a merge patch, or a list of JSON
// patch operations. An empty patch returns base.
func variant(base, patch json.RawMessage) (json.RawMessage, error) {
	patch, err := expand(patch)
	if err != nil {
		return nil, err
	}
	if patch = bytes.TrimSpace(patch); len(patch) > 0 && patch[0] == '[' {
		var ops jsonpatch.Patch
		if ops, err = jsonpatch.DecodePatch(patch); err == nil {
			base, err = ops.Apply(base)
		}
	} else if len(patch) > 0 {
		base, err = jsonpatch.MergePatch(base, patch)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, patch)
	}
	return base, nil
}

// mergePatch returns the JSON merge patch from the object sent to the stored object data. It leaves out the metadata
// that the server sets on every object, and the fields at the paths in tab.Apart.
func (tab *table) mergePatch(sent json.RawMessage, data json.RawMessage) (json.RawMessage, error) {
	var was, is map[string]any
	if err := json.Unmarshal(sent, &was); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &is); err != nil {
		return nil, err
	}
	for _, o := range []map[string]any{was, is} {
		delete(o, "apiVersion")
		delete(o, "kind")
		if meta, ok := o["metadata"].(map[string]any); ok {
			for _, name := range []string{"creationTimestamp", "uid", "resourceVersion", "namespace", "managedFields"} {
				delete(meta, name)
			}
		}
		for _, p := range tab.Apart {
			removePath(o, strings.Split(p, "."))
		}
		dropEmpty(o)
		maskTimes(o)
	}
	from, err := json.Marshal(was)
	if err != nil {
		return nil, err
	}
	to, err := json.Marshal(is)
	if err != nil {
		return nil, err
	}
	return jsonpatch.CreateMergePatch(from, to)
}

// expand expands repetitions in a patch, which are used for values that exceed a limit: {{3*x}} in
// strings, and {"repeat": 3, "of": "a#"} in lists, where # is the index of the element.
func expand(patch json.RawMessage) (json.RawMessage, error) {
	if !bytes.Contains(patch, []byte("{{")) && !bytes.Contains(patch, []byte(`"repeat"`)) {
		return patch, nil
	}
	var v any
	if err := json.Unmarshal(patch, &v); err != nil {
		return nil, err
	}
	return json.Marshal(grow(v, ""))
}

var repeated = regexp.MustCompile(`\{\{(\d+)\*(.*?)\}\}`)

// grow expands the repetitions in a JSON value, which it modifies. number replaces "#" in strings, unless it is "".
func grow(v any, number string) any {
	switch v := v.(type) {
	case string:
		if number != "" {
			v = strings.ReplaceAll(v, "#", number)
		}
		return repeat(v)
	case map[string]any:
		for name, member := range v {
			v[name] = grow(member, number)
		}
	case []any:
		all := make([]any, 0, len(v))
		for _, e := range v {
			m, _ := e.(map[string]any)
			n, ok := m["repeat"].(float64)
			if !ok {
				all = append(all, grow(e, number))
				continue
			}
			for i := range int(n) {
				one := runtime.DeepCopyJSONValue(m["of"])
				all = append(all, grow(one, strconv.Itoa(i)))
			}
		}
		return all
	}
	return v
}

// repeat expands the repetitions {{3*x}} in a text.
func repeat(text string) string {
	return repeated.ReplaceAllStringFunc(text, func(s string) string {
		m := repeated.FindStringSubmatch(s)
		n, err := strconv.Atoi(m[1])
		if err != nil {
			return s
		}
		return strings.Repeat(m[2], n)
	})
}

// abbreviate abbreviates sequences of a thousand or more equal characters in the notation of expand.
func abbreviate(s string) string {
	var b strings.Builder
	for left := s; left != ""; {
		r, _ := utf8.DecodeRuneInString(left)
		rest := strings.TrimLeft(left, string(r))
		if same := left[:len(left)-len(rest)]; len(same) < 1000 {
			b.WriteString(same)
		} else {
			fmt.Fprintf(&b, "{{%d*%c}}", utf8.RuneCountInString(same), r)
		}
		left = rest
	}
	return b.String()
}

// removePath removes the member at a path, in every element of lists on the path.
func removePath(v any, path []string) {
	switch v := v.(type) {
	case map[string]any:
		if len(path) == 1 {
			delete(v, path[0])
			return
		}
		removePath(v[path[0]], path[1:])
	case []any:
		for _, e := range v {
			removePath(e, path)
		}
	}
}

// dropEmpty removes members that are null or empty, which are equivalent to missing ones, at all
// levels of v. It reports whether v itself is empty.
func dropEmpty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		for name, member := range v {
			if dropEmpty(member) {
				delete(v, name)
			}
		}
		return len(v) == 0
	case []any:
		for _, e := range v {
			dropEmpty(e)
		}
		return len(v) == 0
	}
	return false
}

// maskTimes replaces all timestamps within an hour of now, which the server has just set, with
// "now", so that results do not depend on the time.
func maskTimes(v any) {
	each := func(v any, set func(any)) {
		if s, ok := v.(string); ok && len(s) > 19 && s[10] == 'T' {
			if at, err := time.Parse(time.RFC3339, s); err == nil && time.Since(at).Abs() < time.Hour {
				set("now")
			}
		}
		maskTimes(v)
	}
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			each(member, func(now any) { v[name] = now })
		}
	case []any:
		for i, e := range v {
			each(e, func(now any) { v[i] = now })
		}
	}
}
