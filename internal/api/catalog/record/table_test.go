package main

import (
	"bytes"
	"os"
	"reflect"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// TestFormat checks that rewriting the tables in testdata changes only what must change: cases whose
// results are the same keep their text, and the others keep their content.
func TestFormat(t *testing.T) {
	files, err := tableFiles("../testdata", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		old, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		tab, err := readTable(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, cases := split(old); len(cases) != len(tab.Cases) {
			t.Errorf("%s: text of %d cases, want %d", name, len(cases), len(tab.Cases))
		}
		if !bytes.Equal(tab.rewritten(old, nil), old) {
			t.Errorf("%s: the text changes", name)
		}
		all := map[int]bool{}
		for i := range tab.Cases {
			all[i] = true
		}
		written := &table{}
		if err := yaml.UnmarshalStrict(tab.rewritten(old, all), written); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for i := range tab.Cases {
			if !reflect.DeepEqual(written.Cases[i], tab.Cases[i]) {
				t.Errorf("%s: %s: the content changes", name, tab.Cases[i].Name)
			}
		}
	}
}

// TestSubset checks the comparison of stored objects with desired ones.
func TestSubset(t *testing.T) {
	for _, c := range []struct {
		want, have string
		yes        bool
	}{
		{`{"a":1}`, `{"a":1,"b":2}`, true},
		{`{"a":1}`, `{"a":2}`, false},
		{`{"a":{"b":[{"c":1}]}}`, `{"a":{"b":[{"c":1,"d":2}]}}`, true},
		{`{"a":[1,2]}`, `{"a":[1]}`, false},
		{`{"a":1}`, `{}`, false},
		{`{"a":{}, "b":null}`, `{}`, true},
	} {
		if got, err := subset([]byte(c.want), []byte(c.have)); err != nil || got != c.yes {
			t.Errorf("%s in %s: %v, %v", c.want, c.have, got, err)
		}
	}
}

// TestMasks checks that what the server generates for each object is removed from results.
func TestMasks(t *testing.T) {
	const sent, made = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
	if got := string(maskUIDs([]byte(sent+" "+made), []byte(sent))); got != sent+" "+testUID {
		t.Errorf("UIDs: %s", got)
	}
	if got := withoutManagedFields(`Invalid value: {"name":"x","managedFields":[{"fieldsV1":{"f:spec":{}}}]}: must be empty`); got != `Invalid value: {"name":"x"}: must be empty` {
		t.Errorf("managed fields: %s", got)
	}
	got, err := shiftTimes([]byte(`{"a":"2020-01-01T00:00:00Z","b":"2020-01-01T00:00:00.001000Z"}`), time.Hour)
	if err != nil || string(got) != `{"a":"2020-01-01T01:00:00Z","b":"2020-01-01T01:00:00.001000Z"}` {
		t.Errorf("times: %s, %v", got, err)
	}
}
