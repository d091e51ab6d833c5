package dataplane

import (
	"net"
	"strings"
)

// hostIndex maps hostname patterns to values and finds the values for a name, from the most to the least specific pattern.
type hostIndex[T any] struct {
	exact map[string]T
	// wildcards contains the patterns "*.example.com" with the key ".example.com".
	wildcards map[string]T
	// all is the value for all names. It is valid if hasAll is true.
	all    T
	hasAll bool
}

// get returns the value of a pattern, and false if there is none.
func (x *hostIndex[T]) get(pattern string) (T, bool) {
	if pattern == "" {
		return x.all, x.hasAll
	}
	if suffix, ok := strings.CutPrefix(pattern, "*"); ok {
		v, ok := x.wildcards[suffix]
		return v, ok
	}
	v, ok := x.exact[pattern]
	return v, ok
}

// set sets the value of a pattern.
func (x *hostIndex[T]) set(pattern string, v T) {
	if pattern == "" {
		x.all, x.hasAll = v, true
		return
	}
	if suffix, ok := strings.CutPrefix(pattern, "*"); ok {
		if x.wildcards == nil {
			x.wildcards = map[string]T{}
		}
		x.wildcards[suffix] = v
		return
	}
	if x.exact == nil {
		x.exact = map[string]T{}
	}
	x.exact[pattern] = v
}

// grow prepares the index for n exact names.
func (x *hostIndex[T]) grow(n int) { x.exact = make(map[string]T, n) }

// replace replaces the value of each pattern by the result of f.
func (x *hostIndex[T]) replace(f func(pattern string, v T) T) {
	for name, v := range x.exact {
		x.exact[name] = f(name, v)
	}
	for suffix, v := range x.wildcards {
		x.wildcards[suffix] = f("*"+suffix, v)
	}
	if x.hasAll {
		x.all = f("", x.all)
	}
}

// find returns the value of the most specific pattern for a name, and false if no pattern matches.
func (x *hostIndex[T]) find(host string) (found T, ok bool) {
	x.each(host, func(v T) bool {
		found, ok = v, true
		return false
	})
	return found, ok
}

// each calls f with the values of all patterns that match a name, from the most specific, until f returns false.
func (x *hostIndex[T]) each(host string, f func(T) bool) {
	if v, ok := x.exact[host]; ok && !f(v) {
		return
	}
	if len(x.wildcards) > 0 {
		for i := 1; i < len(host); i++ {
			if host[i] != '.' {
				continue
			}
			if v, ok := x.wildcards[host[i:]]; ok && !f(v) {
				return
			}
		}
	}
	if x.hasAll {
		f(x.all)
	}
}

// normalizeHost returns the host of a request without the port and the final dot, in lower case.
func normalizeHost(host string) string {
	if strings.IndexByte(host, ':') >= 0 {
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
