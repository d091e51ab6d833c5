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

var rewrite = flag.Bool("rewrite", false, "write what the cases of testdata come to into them")

// table is a file of testdata: an object, and what comes of variations of it.
// What it records is what the published API server answers too.
type table struct {
	// Base is the object.
	Base json.RawMessage `json:"base"`
	// Apart are paths of members that others than the kind's own rules give
	// values, such as allocated addresses; a trailing name alone.
	Apart []string    `json:"apart,omitempty"`
	Cases []tableCase `json:"cases"`
}

// kinds are all by their apiVersion and kind.
var kinds = sync.OnceValue(func() map[string]*api.Resource {
	all := map[string]*api.Resource{}
	for _, r := range Resources() {
		all[r.GroupVersion().String()+" "+r.Kind] = r
	}
	return all
})

// settled is an object as it is read from the store, where some kinds are kept
// in another version.
func settled(r *api.Resource, obj api.Object) (api.Object, error) {
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

// tableCase is one of Create, Update and Row with what it comes to. Those are
// patches of the base: merge patches, or lists of JSON patch operations, which
// grown writes out.
type tableCase struct {
	Name string `json:"name"`
	// Create: the patched base is created.
	Create json.RawMessage `json:"create,omitempty"`
	// Was is the patch that makes the stored object of the base for Update.
	Was json.RawMessage `json:"was,omitempty"`
	// Update is the patch of the stored object that is sent to replace it.
	Update json.RawMessage `json:"update,omitempty"`
	// To is the subresource that Update is sent to.
	To string `json:"to,omitempty"`
	// Row: the patched base is shown in a table.
	Row json.RawMessage `json:"row,omitempty"`

	Errors   []string `json:"errors,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	// Becomes is a merge patch of what was sent to what is stored.
	Becomes json.RawMessage `json:"becomes,omitempty"`
	// Cells by the names of the columns.
	Cells map[string]any `json:"cells,omitempty"`
}

// result is what a case comes to.
type result struct {
	errors, warnings []string
	becomes          json.RawMessage
	cells            map[string]any
}

const nobodysUID = "00000000-0000-4000-8000-000000000000"

// TestTables walks the cases of testdata through what the API server does with
// objects that are created, changed and shown.
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

// run does with the case's object what the API server's handlers do.
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
		if obj, err = settled(r, obj); err != nil {
			return result{}, err
		}
		cells, err := json.Marshal(rowThen(t, r, obj))
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
	return result{}, fmt.Errorf("nothing is done")
}

// recorded is when the tables were made, of which the ages in them tell.
var recorded = time.Date(2026, time.November, 21, 19, 0, 0, 0, time.UTC)

// rowThen is the row of an object as it was when the tables were made.
func rowThen(t *testing.T, r *api.Resource, obj api.Object) (row []any) {
	synctest.Test(t, func(*testing.T) {
		time.Sleep(time.Until(recorded)) // by the clock of the bubble, which does not wait
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
	if !r.Review { // which nobody keeps
		obj.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
		obj.SetUID(nobodysUID)
	}
	r.PrepareCreate(ctx, obj)
	r.Default(obj)
	if errs := r.Validate(ctx, obj); len(errs) > 0 {
		return result{errors: told(errs)}, nil
	}
	if msgs := path.IsValidPathSegmentName(obj.GetName()); len(msgs) > 0 {
		return result{errors: []string{"metadata.name: " + msgs[0]}}, nil
	}
	if r.Canonicalize != nil {
		r.Canonicalize(obj)
	}
	warnings := append(heard.texts, r.Warnings(ctx, obj, nil)...)
	if obj, err = settled(r, obj); err != nil {
		return result{}, err
	}
	becomes, err := tab.becomes(sent, obj)
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
	if old, err = settled(r, old); err != nil {
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
		return result{errors: told(errs)}, nil
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
	if obj, err = settled(r, obj); err != nil {
		return result{}, err
	}
	got.becomes, err = tab.becomes(sent, obj)
	return got, err
}

// listener keeps the warnings that are told while an object is prepared.
type listener struct{ texts []string }

func (l *listener) AddWarning(_, text string) { l.texts = append(l.texts, text) }

func asAdmin() (context.Context, *listener) {
	l := &listener{}
	return request.WithUser(warning.WithWarningRecorder(context.Background(), l), &user.DefaultInfo{Name: "admin", UID: "1", Groups: []string{"system:masters", "system:authenticated"}}), l
}

// told are errors as the causes of an answer tell them.
func told(errs field.ErrorList) []string {
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
			fmt.Fprintf(&b, "%s:\n  %s\nwant:\n  %s\n", what, shrunk(strings.Join(got, "\n  ")), shrunk(strings.Join(want, "\n  ")))
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

// sameJSON compares two patches, of which none is one that changes nothing.
func sameJSON(a, b json.RawMessage) bool {
	var x, y map[string]any
	if len(a) > 0 && json.Unmarshal(a, &x) != nil || len(b) > 0 && json.Unmarshal(b, &y) != nil {
		return false
	}
	return len(x) == 0 && len(y) == 0 || reflect.DeepEqual(x, y)
}

// text is the table as its file has it: the base as YAML, and one line of JSON
// for each thing that a case says.
func (tab *table) text() []byte {
	var b bytes.Buffer
	line := func(indent, name string, v any) {
		var one bytes.Buffer
		enc := json.NewEncoder(&one)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(v); err != nil {
			panic(err) // what was read as JSON
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
					text = shrunk(text)
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
