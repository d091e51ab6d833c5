package main

import (
	"bytes"
	"os"
	"testing"
)

// TestFormat checks that the tables in testdata keep their text when they are written without a change.
func TestFormat(t *testing.T) {
	files, err := tableFiles("../testdata", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		tab, err := readTable(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(tab.text(), want) {
			t.Errorf("%s: the text changes", name)
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
