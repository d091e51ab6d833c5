package main

import "testing"

func TestSearchPath(t *testing.T) {
	for _, c := range []struct{ path, want string }{
		{"", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		{"/usr/bin:/bin", "/usr/bin:/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin"},
		{"/opt/own:/usr/sbin", "/opt/own:/usr/sbin:/usr/local/sbin:/usr/local/bin:/usr/bin:/sbin:/bin"},
		{":/opt/own:", "/opt/own:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	} {
		if got := searchPath(c.path); got != c.want {
			t.Errorf("%q: %q, want %q", c.path, got, c.want)
		}
	}
}
