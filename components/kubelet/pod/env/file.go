package env

import (
	"fmt"
	"strings"
)

// FromFile returns the value of a variable in an env file, or "" if the file does not define it. Lines have the
// form NAME='value', optionally followed by a comment. A value may span lines. A value that does not
// immediately follow the = is empty. If several lines define the variable, the first one counts. It returns an
// error if a line up to that one is malformed.
//
// https://kubernetes.io/docs/tasks/inject-data-application/define-environment-variable-via-file/
func FromFile(text, name string) (string, error) {
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		fail := func(what string) (string, error) {
			return "", fmt.Errorf("invalid environment variable format at line %d: %s", i+1, what)
		}
		line := strings.TrimLeft(strings.TrimSuffix(lines[i], "\r"), " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		switch {
		case !ok:
			return fail("missing '='")
		case strings.TrimRight(key, " \t") == "":
			return fail("empty variable name")
		case strings.TrimRight(key, " \t") != key:
			return fail("whitespace before '=' is not allowed")
		}
		if value != strings.TrimLeft(value, " \t") {
			if key == name {
				return "", nil
			}
			continue
		}
		rest, ok := strings.CutPrefix(value, "'")
		if !ok {
			return fail("value must be enclosed in single quotes")
		}
		first := i
		var content strings.Builder
		for {
			part, behind, closed := strings.Cut(rest, "'")
			content.WriteString(part)
			if closed {
				if behind = strings.TrimLeft(behind, " \t"); behind != "" && behind[0] != '#' {
					return fail("unexpected content after closing quote")
				}
				break
			}
			content.WriteString("\n")
			if i++; i >= len(lines) {
				return "", fmt.Errorf("invalid environment variable format starting at line %d: unclosed single quote", first+1)
			}
			rest = strings.TrimSuffix(lines[i], "\r")
		}
		if key == name {
			return content.String(), nil
		}
	}
	return "", nil
}
