package catalog

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"sigs.k8s.io/yaml"

	"hyperkube/internal/api"
)

var rewrite = flag.Bool("rewrite", false, "update the expected results in testdata")

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

// kinds maps apiVersion and kind to resources.
var kinds = sync.OnceValue(func() map[string]*api.Resource {
	all := map[string]*api.Resource{}
	for _, r := range Resources() {
		all[r.GroupVersion().String()+" "+r.Kind] = r
	}
	return all
})

// asStored returns an object as it is read from the store. Some kinds are stored in another version.
func asStored(r *api.Resource, obj api.Object) (api.Object, error) {
	if r.StoredAs == nil {
		return obj, nil
	}
	stored, err := r.StoredAs.ToStored(obj)
	if err != nil {
		return nil, err
	}
	kinds()[r.StoredAs.GroupVersion().String()+" "+r.StoredAs.Kind].Default(stored)
	return r.StoredAs.FromStored(stored)
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

// result is the result of a case.
type result struct {
	errors, warnings []string
	becomes          json.RawMessage
	cells            map[string]any
}

const testUID = "00000000-0000-4000-8000-000000000000"

// TestTables processes the test cases in testdata like the API server.
func TestTables(t *testing.T) {
	var files []string
	if err := filepath.WalkDir("testdata", func(name string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(name, ".yaml") {
			files = append(files, name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("no tables")
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(strings.TrimPrefix(filepath.ToSlash(name), "testdata/"), ".yaml"), func(t *testing.T) {
			t.Parallel()
			tab, err := readTable(name)
			if err != nil {
				t.Fatal(err)
			}
			var m metav1.TypeMeta
			if err := json.Unmarshal(tab.Base, &m); err != nil {
				t.Fatal(err)
			}
			r := kinds()[m.APIVersion+" "+m.Kind]
			if r == nil {
				t.Fatalf("no kind %s %s", m.APIVersion, m.Kind)
			}
			names := map[string]bool{}
			for i := range tab.Cases {
				c := &tab.Cases[i]
				if names[c.Name] {
					t.Errorf("two cases are called %q", c.Name)
				}
				names[c.Name] = true
				got, err := tab.run(t, r, c)
				if err != nil {
					t.Errorf("%s: %v", c.Name, err)
					continue
				}
				if *rewrite {
					c.Errors, c.Warnings, c.Becomes, c.Cells = got.errors, got.warnings, got.becomes, got.cells
					continue
				}
				if diff := c.diff(got); diff != "" {
					t.Errorf("%s:\n%s", c.Name, diff)
				}
			}
			if *rewrite && !t.Failed() {
				if err := os.WriteFile(name, tab.text(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

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

// run processes the object of a case like the API server's handlers.
func (tab *table) run(t *testing.T, r *api.Resource, c *tableCase) (result, error) {
	switch {
	case c.Create != nil:
		return tab.create(r, c)
	case c.Update != nil:
		return tab.update(r, c)
	case c.Row != nil:
		_, obj, err := variant(r, tab.Base, c.Row)
		if err != nil {
			return result{}, err
		}
		r.Default(obj)
		if r.Complete != nil {
			r.Complete(obj)
		}
		if obj, err = asStored(r, obj); err != nil {
			return result{}, err
		}
		cells, err := json.Marshal(rowAtRecording(t, r, obj))
		if err != nil {
			return result{}, err
		}
		var values []any
		if err := json.Unmarshal(cells, &values); err != nil {
			return result{}, err
		}
		if len(values) != len(r.Columns) {
			return result{}, fmt.Errorf("%d cells in %d columns", len(values), len(r.Columns))
		}
		got := result{cells: map[string]any{}}
		for i, column := range r.Columns {
			got.cells[column.Name] = values[i]
		}
		return got, nil
	}
	return result{}, fmt.Errorf("no request")
}

// recordedAt is the time when the tables were recorded, which determines the ages in them.
var recordedAt = time.Date(2026, time.November, 21, 19, 0, 0, 0, time.UTC)

// rowAtRecording returns the table row of an object at the time when the tables were recorded.
func rowAtRecording(t *testing.T, r *api.Resource, obj api.Object) (row []any) {
	synctest.Test(t, func(*testing.T) {
		time.Sleep(time.Until(recordedAt)) // fake time of the bubble
		row = r.Row(obj)
	})
	return row
}

func (tab *table) create(r *api.Resource, c *tableCase) (result, error) {
	ctx, heard := asAdmin()
	sent, obj, err := variant(r, tab.Base, c.Create)
	if err != nil {
		return result{}, err
	}
	r.Default(obj)
	obj.SetDeletionTimestamp(nil)
	obj.SetDeletionGracePeriodSeconds(nil)
	if !r.Review { // reviews are not stored
		obj.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
		obj.SetUID(testUID)
	}
	r.PrepareCreate(ctx, obj)
	r.Default(obj)
	if errs := r.Validate(ctx, obj); len(errs) > 0 {
		return result{errors: formatErrors(errs)}, nil
	}
	if msgs := path.IsValidPathSegmentName(obj.GetName()); len(msgs) > 0 {
		return result{errors: []string{"metadata.name: " + msgs[0]}}, nil
	}
	if r.Canonicalize != nil {
		r.Canonicalize(obj)
	}
	warnings := append(heard.texts, r.Warnings(ctx, obj, nil)...)
	if obj, err = asStored(r, obj); err != nil {
		return result{}, err
	}
	becomes, err := tab.mergePatch(sent, obj)
	return result{warnings: warnings, becomes: becomes}, err
}

func (tab *table) update(r *api.Resource, c *tableCase) (result, error) {
	ctx, heard := asAdmin()
	way := &r.Update
	if c.To != "" {
		view, ok := r.Views[c.To]
		if !ok {
			return result{}, fmt.Errorf("%s has no %s", r.Kind, c.To)
		}
		way = &view
	}
	stored, old, err := variant(r, tab.Base, c.Was)
	if err != nil {
		return result{}, fmt.Errorf("was: %w", err)
	}
	sent, obj, err := variant(r, stored, c.Update)
	if err != nil {
		return result{}, err
	}
	r.Default(old)
	if old, err = asStored(r, old); err != nil {
		return result{}, err
	}
	r.Default(obj)
	created := metav1.NewTime(time.Now().Truncate(time.Second))
	for _, o := range []api.Object{old, obj} {
		o.SetResourceVersion("1")
		o.SetCreationTimestamp(created)
		if r.Complete != nil {
			r.Complete(o)
		}
	}
	obj.SetGeneration(old.GetGeneration())
	way.Prepare(ctx, obj, old)
	if obj.GetUID() == "" {
		obj.SetUID(old.GetUID())
	}
	if t := old.GetDeletionTimestamp(); t != nil {
		obj.SetDeletionTimestamp(t)
	}
	if old.GetDeletionGracePeriodSeconds() != nil && obj.GetDeletionGracePeriodSeconds() == nil {
		obj.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
	}
	r.Default(obj)
	if errs := way.Validate(ctx, obj, old); len(errs) > 0 {
		return result{errors: formatErrors(errs)}, nil
	}
	if r.Canonicalize != nil {
		r.Canonicalize(obj)
	}
	got := result{warnings: heard.texts}
	warnings := way.Warnings
	if len(way.Verbs) == 0 {
		warnings = r.Warnings
	}
	if warnings != nil {
		got.warnings = append(got.warnings, warnings(ctx, obj, old)...)
	}
	if obj, err = asStored(r, obj); err != nil {
		return result{}, err
	}
	got.becomes, err = tab.mergePatch(sent, obj)
	return got, err
}

// warningRecorder records the warnings that are sent while an object is processed.
type warningRecorder struct{ texts []string }

func (l *warningRecorder) AddWarning(_, text string) { l.texts = append(l.texts, text) }

func asAdmin() (context.Context, *warningRecorder) {
	l := &warningRecorder{}
	return request.WithUser(warning.WithWarningRecorder(context.Background(), l), &user.DefaultInfo{Name: "admin", UID: "1", Groups: []string{"system:masters", "system:authenticated"}}), l
}

// formatErrors formats errors like the causes in an API response.
func formatErrors(errs field.ErrorList) []string {
	all := make([]string, len(errs))
	for i, e := range errs {
		all[i] = e.Field + ": " + e.ErrorBody()
	}
	return all
}

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
