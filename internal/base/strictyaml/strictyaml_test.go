package strictyaml

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// parseOne parses a file with one document.
func parseOne(t *testing.T, text string) *Node {
	t.Helper()
	docs, err := Parse("f.yaml", []byte(text))
	if err != nil || len(docs) != 1 {
		t.Fatalf("%d documents, %v", len(docs), err)
	}
	return docs[0]
}

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		text, want string // want is the JSON of each document, or is contained in the error
		fails      bool
	}{
		"scalars":         {text: "a: 1\nb: 0x10\nc: 1.5\nd: true\ne: yes\nf: '7'\ng:\nh: 2026-01-02\ni: 18446744073709551615", want: `{"a":1,"b":16,"c":1.5,"d":true,"e":"yes","f":"7","g":null,"h":"2026-01-02","i":18446744073709551615}`},
		"nested":          {text: "b: [1, {x: y}]\na: {c: []}", want: `{"b":[1,{"x":"y"}],"a":{"c":[]}}`},
		"documents":       {text: "a: 1\n---\n# nothing\n---\nb: 2\n---\nnull", want: `{"a":1} {"b":2}`},
		"nothing":         {text: "# nothing\n", want: ""},
		"alias":           {text: "a: &x {y: 1}\nb: *x", want: `{"a":{"y":1},"b":{"y":1}}`},
		"duplicate":       {text: "a: 1\nb: 2\na: 3", fails: true, want: `f.yaml:3: key "a" is already set in line 1`},
		"two duplicates":  {text: "a: 1\na: 3\n---\nb: {c: 1,\n c: 2}", fails: true, want: "f.yaml:5: key \"c\" is already set in line 4"},
		"merge key":       {text: "a: &x {y: 1}\nb:\n  <<: *x", fails: true, want: "f.yaml:3: merge keys"},
		"list":            {text: "\n- a", fails: true, want: "f.yaml:2: expected keys and values, got a list"},
		"syntax":          {text: "a: 1\nb: [", fails: true, want: "f.yaml:"},
		"tab":             {text: "a:\n\tb: 1", fails: true, want: "f.yaml:2: "},
		"not a number":    {text: "a: .inf", fails: true, want: "f.yaml:1: .inf is not a number"},
		"too large":       {text: "a: 18446744073709551616000000", want: `{"a":1.8446744073709552e+25}`},
		"complex key":     {text: "? [a]\n: 1", fails: true, want: "f.yaml:1: a key must be a string"},
		"tag":             {text: "a: !x y", fails: true, want: "f.yaml:1: tag !x is not supported"},
		"too deep":        {text: "a: " + strings.Repeat("[", 201) + strings.Repeat("]", 201), fails: true, want: "f.yaml:1: values are nested in more than 100 levels"},
		"too many values": {text: "a: &a [" + strings.Repeat("1,", 999) + "1]\nb: &b [" + strings.Repeat("*a,", 99) + "*a]\nc: *b", fails: true, want: "more than 100000 values"},
	} {
		docs, err := Parse("f.yaml", []byte(c.text))
		var got []string
		for _, d := range docs {
			got = append(got, string(d.JSON()))
		}
		if c.fails && (err == nil || !strings.Contains(err.Error(), c.want)) || !c.fails && (err != nil || strings.Join(got, " ") != c.want) {
			t.Errorf("%s: got %s, %v, want %s", name, got, err, c.want)
		}
	}
}

func TestMerge(t *testing.T) {
	for name, c := range map[string]struct{ base, over, want string }{
		"mappings":          {"a: {b: 1, c: 2}\nd: 3", "a: {c: 4, e: 5}", `{"a":{"b":1,"c":4,"e":5},"d":3}`},
		"null deletes":      {"a: {b: 1}\nd: 3", "a: null", `{"d":3}`},
		"lists":             {"a: [1, 2]", "a: [3]", `{"a":[3]}`},
		"named items":       {"a: [{name: x, v: 1}, {name: y, v: 2}]", "a: [{name: z, v: 3}, {name: x, v: 4}, {name: x, v: 5}]", `{"a":[{"name":"y","v":2},{"name":"z","v":3},{"name":"x","v":4},{"name":"x","v":5}]}`},
		"item without name": {"a: [{name: x}]", "a: [{v: 3}]", `{"a":[{"v":3}]}`},
		"other kinds":       {"a: [1]", "a: {b: 1}", `{"a":{"b":1}}`},
	} {
		base, over := parseOne(t, c.base), parseOne(t, c.over)
		before := string(base.JSON())
		if got := string(Merge(base, over).JSON()); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
		if after := string(base.JSON()); after != before {
			t.Errorf("%s: the base changed to %s", name, after)
		}
	}
}

// sample has fields of the types that configurations have.
type sample struct {
	Number  int32           `json:"number"`
	On      *bool           `json:"on"`
	Text    string          `json:"text"`
	Period  metav1.Duration `json:"period"`
	List    []sample        `json:"list"`
	Strings []string        `json:"strings"`
	Map     map[string]struct {
		Inner int `json:"inner"`
	} `json:"map"`
}

func TestDecode(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"all":           {"number: 1\non: true\ntext: x\nperiod: 5s\nlist: [{number: 2}]\nstrings: [a]\nmap: {a.b: {inner: 1}}", nil},
		"unknown":       {"number: 1\nnumbr: 2\nlist:\n- text: x\n  txt: y\nmap:\n  a.b:\n    inn: 1", []string{"f.yaml:2: numbr: unknown field", "f.yaml:5: list[0].txt: unknown field", "f.yaml:8: map.a.b.inn: unknown field"}},
		"case":          {"Number: 1", []string{"f.yaml:1: Number: unknown field"}},
		"wrong types":   {"number: x\non: 1\ntext: 5\nlist:\n- on: true\n- on: maybe\nstrings: a\nmap: []", []string{"f.yaml:1: number: expected an integer of 32 bits, got a string", "f.yaml:2: on: expected true or false, got a number", "f.yaml:3: text: expected a string, got a number: quote the value", "f.yaml:6: list[1].on: expected true or false, got a string", "f.yaml:7: strings: expected a list, got a string", "f.yaml:8: map: expected a mapping, got a list"}},
		"out of range":  {"number: 3000000000", []string{"f.yaml:1: number: expected an integer of 32 bits, got a number"}},
		"own decoder":   {"text: x\nlist:\n- period: 5x", []string{`f.yaml:3: list[0].period: time: unknown unit "x" in duration "5x"`}},
		"both":          {"x: 1\nnumber: y", []string{"f.yaml:1: x: unknown field", "f.yaml:2: number: expected an integer of 32 bits, got a string"}},
		"list of items": {"strings:\n- a\n- b: c", []string{"f.yaml:3: strings[1]: expected a string, got a mapping"}},
	} {
		_, errs := Decode[sample](parseOne(t, c.text))
		var got []string
		for _, err := range errs {
			got = append(got, err.Error())
		}
		if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
			t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// FuzzParse checks that parsed documents are valid JSON, that parsing the JSON returns the same document, and that errors of
// decoding have a position.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"a: 1\n---\nb: [x, {y: z}]", "a: &x {y: 1}\nb: *x", "number: x\nlist: [{on: 3}]\nmap: {a.b: {c: 1}}", "? [a]\n: 1", "a: !!binary aGk=", "\"\\u0000\": .nan"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		docs, err := Parse("f", data)
		if err != nil {
			return
		}
		for _, d := range docs {
			text := d.JSON()
			if !json.Valid(text) {
				t.Fatalf("invalid JSON: %s", text)
			}
			again, err := Parse("f", text)
			if err != nil || len(again) != 1 || string(again[0].JSON()) != string(text) {
				t.Fatalf("parsing %s again: %v", text, err)
			}
			_, errs := Decode[sample](d)
			for _, err := range errs {
				if !strings.HasPrefix(err.Position, "f:") {
					t.Fatalf("error without position: %v", err)
				}
			}
			Merge(d, again[0])
		}
	})
}
