// Package env computes the environment of a container: variables, their expansion, the downward
// API, and service variables.
package env

import "strings"

// Expand replaces every $(NAME) in input by the value that lookup returns. $$ is replaced by a single dollar
// sign. References to names for which lookup returns false are left unchanged.
func Expand(input string, lookup func(name string) (string, bool)) string {
	if strings.IndexByte(input, '$') < 0 {
		return input
	}
	var out strings.Builder
	for i := 0; i < len(input); i++ {
		if input[i] != '$' || i+1 == len(input) {
			out.WriteByte(input[i])
			continue
		}
		switch input[i+1] {
		case '$':
			out.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(input[i+2:], ')')
			if end < 0 {
				out.WriteString("$(")
				i++
				continue
			}
			name := input[i+2 : i+2+end]
			if value, ok := lookup(name); ok {
				out.WriteString(value)
			} else {
				out.WriteString("$(" + name + ")")
			}
			i += 2 + end
		default:
			out.WriteByte('$')
			out.WriteByte(input[i+1])
			i++
		}
	}
	return out.String()
}

// ExpandMap returns each string of list, such as the arguments of a container, expanded with the variables
// vars.
func ExpandMap(list []string, vars map[string]string) []string {
	if list == nil {
		return nil
	}
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = Expand(s, func(name string) (string, bool) { v, ok := vars[name]; return v, ok })
	}
	return out
}
