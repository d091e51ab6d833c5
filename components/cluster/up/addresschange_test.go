package up

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// addrs parses addresses separated by spaces.
func addrs(text string) []netip.Addr {
	var out []netip.Addr
	for word := range strings.FieldsSeq(text) {
		out = append(out, netip.MustParseAddr(word))
	}
	return out
}

func TestChooseAddresses(t *testing.T) {
	const fallbacks = "10.244.0.1 fd00:10:244::1"
	for _, c := range []struct {
		name                             string
		current, machine, assigned, want string
	}{
		{"nothing changed", "192.0.2.1", "192.0.2.1", "127.0.0.1 192.0.2.1", "192.0.2.1"},
		{"another network", "192.0.2.1", "198.51.100.7", "127.0.0.1 198.51.100.7", "198.51.100.7"},
		{"another link is preferred", "192.0.2.1", "198.51.100.7", "192.0.2.1 198.51.100.7", "192.0.2.1"},
		{"unplugged", "192.0.2.1", "", "127.0.0.1 10.244.0.1", "192.0.2.1"},
		{"first address of the machine", "10.244.0.1", "192.0.2.1", "10.244.0.1 192.0.2.1", "192.0.2.1"},
		{"still no address", "10.244.0.1", "", "127.0.0.1 10.244.0.1", "10.244.0.1"},
		{"one family of two", "192.0.2.1 2001:db8::1", "192.0.2.1 2001:db8::2", "192.0.2.1 2001:db8::2", "192.0.2.1 2001:db8::2"},
		{"order of families", "2001:db8::1 192.0.2.1", "192.0.2.9 2001:db8::1", "2001:db8::1 192.0.2.9", "2001:db8::1 192.0.2.9"},
		{"one family gets an address", "10.244.0.1 2001:db8::1", "2001:db8::1", "10.244.0.1 2001:db8::1", "10.244.0.1 2001:db8::1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := chooseAddresses(addrs(c.current), addrs(fallbacks), addrs(c.machine), addrs(c.assigned)); !slices.Equal(got, addrs(c.want)) {
				t.Errorf("got %v, want %s", got, c.want)
			}
		})
	}
}

// TestResumeAfterAddressChange checks that the process executes itself without waiting for anything.
func TestResumeAfterAddressChange(t *testing.T) {
	change := &addressChange{before: addrs("192.0.2.1"), after: addrs("198.51.100.7")}
	if want := "the addresses of the node changed from 192.0.2.1 to 198.51.100.7"; change.Error() != want {
		t.Errorf("error %q, want %q", change, want)
	}
	r := testResumer(t, resumption{}, false)
	var executed []resumption
	r.exec = func(next resumption) error {
		executed = append(executed, next)
		return errors.New("not in a test")
	}
	failed := errors.Join(change, context.Canceled)
	if err := r.resume(t.Context(), failed); !errors.Is(err, failed) {
		t.Errorf("returns %v", err)
	}
	if want := []resumption{{Reason: change.Error()}}; !slices.Equal(executed, want) {
		t.Errorf("executes %+v, want %+v", executed, want)
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if _ = r.resume(stopped, change); len(executed) != 1 {
		t.Error("executes itself while the cluster stops")
	}
	if resumed := testResumer(t, executed[0], false); !resumed.wait(t.Context()) {
		t.Error("the next process does not start the cluster")
	}
}
