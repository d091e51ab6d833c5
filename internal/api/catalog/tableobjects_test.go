package catalog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"hyperkube/internal/api"
)

// variant returns base with patch applied, as JSON and as an object.
func variant(r *api.Resource, base, patch json.RawMessage) (json.RawMessage, api.Object, error) {
	patch, err := expand(patch)
	if err != nil {
		return nil, nil, err
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
		return nil, nil, fmt.Errorf("%w: %s", err, patch)
	}
	obj := r.New()
	if err := yaml.UnmarshalStrict(base, obj); err != nil {
		return nil, nil, err
	}
	if r.Scope == api.Namespaced && obj.GetNamespace() == "" {
		obj.SetNamespace("default")
	}
	return base, obj, nil
}

// mergePatch returns the merge patch from the sent object to obj, without the metadata that the server
// sets on every object and without the paths in Apart.
func (tab *table) mergePatch(sent json.RawMessage, obj api.Object) (json.RawMessage, error) {
	data, err := json.Marshal(obj)
	if err != nil {
		return nil, err
	}
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

// dropEmpty removes members that are null or empty, which are equivalent to missing ones.
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

// maskTimes replaces all timestamps that the server has set during the test with a constant.
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
