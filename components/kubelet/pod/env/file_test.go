package env

import "testing"

func TestFromFile(t *testing.T) {
	for _, tc := range []struct{ text, want, err string }{
		{"A='x'\n", "x", ""},
		{"# no\n\n  B='y' # why\r\n\tA='a=b#c'", "a=b#c", ""},
		{"A='one\ntwo'\nB='z'", "one\ntwo", ""},
		{"B='A=\nA='\nA='x'", "x", ""},
		{"A= 'x'\nA='y'", "", ""},
		{"B='y'", "", ""},
		{"", "", ""},
		{"A=x", "", "invalid environment variable format at line 1: value must be enclosed in single quotes"},
		{"\nA", "", "invalid environment variable format at line 2: missing '='"},
		{"A ='x'", "", "invalid environment variable format at line 1: whitespace before '=' is not allowed"},
		{"='x'", "", "invalid environment variable format at line 1: empty variable name"},
		{"A='x' y", "", "invalid environment variable format at line 1: unexpected content after closing quote"},
		{"\nA='x\n", "", "invalid environment variable format starting at line 2: unclosed single quote"},
	} {
		got, err := FromFile(tc.text, "A")
		text := ""
		if err != nil {
			text = err.Error()
		}
		if got != tc.want || text != tc.err {
			t.Errorf("%q: %q %q, want %q %q", tc.text, got, text, tc.want, tc.err)
		}
	}
}

func FuzzFromFile(f *testing.F) {
	f.Add("A='x'\nB='y\nz' # c", "B")
	f.Fuzz(func(t *testing.T, text, name string) {
		if v, err := FromFile(text, name); err != nil && v != "" {
			t.Errorf("%q with %v", v, err)
		}
	})
}
