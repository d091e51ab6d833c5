package main

import (
	"os"
	"slices"
	"testing"

	"hyperkube/internal/testing/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

const page = "# Glossary\n\n## Banned phrases\n\n| Banned | Write |\n|---|---|\n" +
	"| `(tell\\|tells) whether` | report whether |\n| `(master\\|masters)` | control plane node |\n" +
	"\n## Allowed uses\n\n| Allowed | Reason |\n|---|---|\n| `system:masters` | group |\n"

func TestCheckGo(t *testing.T) {
	terms, err := parse([]byte(page))
	if err != nil {
		t.Fatal(err)
	}
	source := `package p

// f tells
// whether x holds.
func f() {}

var mastersOnly = "the Master"

const group = "system:masters" // tells that webmasters are fine
`
	want := []finding{
		{"p.go", 3, "tells // whether", "report whether"},
		{"p.go", 7, "masters", "control plane node"},
		{"p.go", 7, "Master", "control plane node"},
	}
	if got := terms.checkGo("p.go", []byte(source)); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestWords(t *testing.T) {
	for in, want := range map[string]string{
		"tellsWhether": "tells Whether", "tells_whether": "tells whether", "URLOf": "URLOf", "x": "x",
	} {
		if got := words(in); got != want {
			t.Errorf("words(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestGlossary parses the project's own page.
func TestGlossary(t *testing.T) {
	data, err := os.ReadFile("../../" + glossary)
	if err != nil {
		t.Fatal(err)
	}
	terms, err := parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if found := terms.checkText("x", 1, "anew, and nobody\ntells"); len(found) != 3 || found[2].line != 2 {
		t.Errorf("found %v", found)
	}
}
