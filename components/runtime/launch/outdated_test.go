package launch

import "testing"

// TestOutdated tells processes that were started with these options from others,
// and leaves alone what somebody else has started.
func TestOutdated(t *testing.T) {
	o := Options{PIDFile: "/run/p", Args: []string{"--root=/r"}}
	for _, c := range []struct {
		name string
		argv []string
		want bool
	}{
		{"the same", o.argv(), false},
		{"other options", Options{PIDFile: o.PIDFile, Args: []string{"--root=/other"}}.argv(), true},
		{"another build", []string{name, "--pid-file", o.PIDFile, "--build", "x", "--root=/r"}, true},
		{"of before builds were told", []string{name, "--pid-file", o.PIDFile, "--root=/r"}, true},
		{"another's", []string{name, "--pid-file", "/other", "--root=/r"}, false},
		{"another program", []string{"containerd", "--root=/other"}, false},
	} {
		if got := o.outdated(c.argv); got != c.want {
			t.Errorf("%s: outdated is %t", c.name, got)
		}
	}
	if got := o.Successor("/usr/bin/hyperkube"); got[0] != "/usr/bin/hyperkube" || got[1] != "runtime" || got[2] != "--pid-file" {
		t.Errorf("the successor is %q", got)
	}
}
