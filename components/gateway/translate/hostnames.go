package translate

import (
	"slices"
	"strings"
)

// intersectHostnames returns the names that a listener with the hostname listener serves for a route with hostnames: for
// each of them the more specific of the two, if they intersect. An empty listener serves all names, and a route without
// hostnames all of the listener. The result is empty if nothing intersects.
func intersectHostnames(listener string, hostnames []string) []string {
	if len(hostnames) == 0 {
		return []string{listener}
	}
	if listener == "" && len(hostnames) == 1 {
		return hostnames // the usual case, without a copy
	}
	var out []string
	for _, h := range hostnames {
		switch {
		case covers(listener, h):
			out = append(out, h)
		case covers(h, listener):
			out = append(out, listener)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// covers reports whether all names of the pattern b belong to the pattern a. A pattern is a name, a wildcard such as
// "*.example.com", which stands for one or more labels, or "" for all names.
func covers(a, b string) bool {
	if a == "" || a == b {
		return true
	}
	suffix, wildcard := strings.CutPrefix(a, "*")
	return wildcard && len(b) > len(suffix) && strings.HasSuffix(b, suffix)
}
