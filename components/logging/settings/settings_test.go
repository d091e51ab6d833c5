package settings

import (
	"regexp"
	"strings"
	"testing"

	"hyperkube/components/logging/record"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "",
		"# nothing":                      "",
		"drop: [{match: x}]":             "",
		"drop: [{namespace: x}]":         "",
		"drops: []":                      "config.yaml:1: drops: unknown field",
		"drop:\n- {}":                    "config.yaml: drop[0]: a rule without match and without selector would drop all records",
		"drop: [{match: '('}]":           "drop[0]: match: error parsing regexp",
		"drop: [{labels: '='}]":          "drop[0]: labels: ",
		"redact: [{replace: x}]":         "redact[0]: match is required",
		"multiline: [{namespace: x}]":    "multiline[0]: start is required",
		"---\n{}\n---\ndrop: []":         "more than one document",
		"sinks: [{name: A, type: file}]": `sinks[0]: name "A" must consist of`,
		"sinks: [{name: a, type: file}, {name: a, type: file}]": `sinks[1]: name "a" is used twice`,
		"sinks: [{name: a, type: syslog}]":                      `sinks[0]: type "syslog" is unknown: use otlp, loki, elasticsearch or file`,
		"sinks: [{name: a, type: loki}]":                        `sinks[0]: url "" must be an HTTP or HTTPS URL`,
		"sinks: [{name: a, type: loki, url: 'ftp://x'}]":        `must be an HTTP or HTTPS URL`,
		"sinks: [{name: a, type: loki, url: 'http://x/push'}]":  "",
		"sinks: [{name: a, type: file, url: 'http://x'}]":       "a file has no url",
		"sinks: [{name: a, type: file, select: {labels: '='}}]": "sinks[0]: select: labels: ",
		"sinks: [{name: a, type: file, maxBytes: many}]":        "config.yaml:1: sinks[0].maxBytes: ",
		"sinks: [{name: ../a, type: file}]":                     "must consist of lowercase letters",
	} {
		s, err := Parse("config.yaml", []byte(text))
		switch {
		case want == "" && (err != nil || s.Source() != text):
			t.Errorf("%q: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("drop: [{match: x, labels: a=b}]\nredact: [{match: '(a)', replace: '$1'}]\nsinks: [{name: a, type: file}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse("config.yaml", data)
		if err != nil {
			return
		}
		p := s.For(&record.Source{Namespace: "n"}, nil)
		p.Apply(data)
		for i := range s.Sinks {
			s.Sinks[i].Selects(&record.Source{File: "f"})
		}
	})
}

func TestPipeline(t *testing.T) {
	s, err := Parse("config.yaml", []byte(`
multiline:
- {labels: app=java, start: '^\d'}
- {namespace: shop, start: '^\['}
drop:
- {labels: app=web, match: healthz}
- {container: noisy}
redact:
- {match: '(password|token)=\S+', replace: '$1=***'}
- {namespace: shop, match: 'cart', replace: 'basket'}
sinks:
- {name: a, type: file, select: {namespace: shop}}
- {name: b, type: file, nodeLogs: true}
`))
	if err != nil {
		t.Fatal(err)
	}
	web := &record.Source{Namespace: "shop", Container: "c", Labels: map[string]string{"app": "web"}}
	java := &record.Source{Namespace: "shop", Container: "noisy", Labels: map[string]string{"app": "java"}}
	other := &record.Source{Namespace: "x", Container: "c"}
	for _, c := range []struct {
		src        *record.Source
		text, want string // want is empty if the record is dropped
	}{
		{web, "GET /healthz", ""},
		{web, "cart token=abc x", "basket token=*** x"},
		{java, "anything", ""},
		{other, "GET /healthz cart password=1 token=2", "GET /healthz cart password=*** token=***"},
	} {
		got, ok := s.For(c.src, nil).Apply([]byte(c.text))
		if string(got) != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q %t, want %q", c.text, got, ok, c.want)
		}
	}
	own := regexp.MustCompile("own")
	for _, c := range []struct {
		src  *record.Source
		own  *regexp.Regexp
		want string
	}{{web, nil, `^\[`}, {java, nil, `^\d`}, {java, own, "own"}, {other, nil, ""}} {
		got := ""
		if re := s.For(c.src, c.own).Start(); re != nil {
			got = re.String()
		}
		if got != c.want {
			t.Errorf("%+v: start %q, want %q", c.src, got, c.want)
		}
	}
	file := &record.Source{File: "hyperkube"}
	for _, c := range []struct {
		src  *record.Source
		a, b bool
	}{{web, true, true}, {other, false, true}, {file, false, true}} {
		if a, b := s.Sinks[0].Selects(c.src), s.Sinks[1].Selects(c.src); a != c.a || b != c.b {
			t.Errorf("%+v: sinks %t %t", c.src, a, b)
		}
	}
}
