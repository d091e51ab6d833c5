package network

import (
	"errors"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"hyperkube/internal/host/netlinkutil"
	"hyperkube/internal/pod/netannotation"
)

// fakeDevice is a WireGuard link as the kernel maintains it: an allowed address belongs to the peer that got it last.
type fakeDevice struct {
	state  wgtypes.Device
	peers  map[wgtypes.Key]*wgtypes.Peer
	writes int
	err    error
}

func (d *fakeDevice) Device(string) (*wgtypes.Device, error) {
	out := d.state
	for _, p := range d.peers {
		out.Peers = append(out.Peers, *p)
	}
	return &out, nil
}

func (d *fakeDevice) ConfigureDevice(_ string, cfg wgtypes.Config) error {
	if d.err != nil {
		return d.err
	}
	d.writes++
	if cfg.PrivateKey != nil {
		d.state.PrivateKey = *cfg.PrivateKey
	}
	if cfg.ListenPort != nil {
		d.state.ListenPort = *cfg.ListenPort
	}
	for _, c := range cfg.Peers {
		if c.Remove {
			delete(d.peers, c.PublicKey)
			continue
		}
		p := d.peers[c.PublicKey]
		if p == nil {
			p = &wgtypes.Peer{PublicKey: c.PublicKey}
			d.peers[c.PublicKey] = p
		}
		if c.Endpoint != nil {
			p.Endpoint = c.Endpoint
		}
		if c.ReplaceAllowedIPs {
			p.AllowedIPs = nil
		}
		for _, ip := range c.AllowedIPs {
			for _, other := range d.peers {
				other.AllowedIPs = slices.DeleteFunc(other.AllowedIPs, func(have net.IPNet) bool { return have.String() == ip.String() })
			}
			p.AllowedIPs = append(p.AllowedIPs, ip)
		}
	}
	return nil
}

func (*fakeDevice) Close() error { return nil }

// TestWireGuardPeers writes random sets of peers to the kernel, and compares what it has afterwards.
func TestWireGuardPeers(t *testing.T) {
	d := &fakeDevice{peers: map[wgtypes.Key]*wgtypes.Peer{}}
	w := newWireGuard("none", nil)
	w.open = func() (device, error) { return d, nil }
	w.keys.current = wgtypes.Key{99}
	cidrs := prefixes("10.1.1.0/24", "10.1.2.0/24", "10.1.3.0/24", "fd00:1::/64", "fd00:2::/64")
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		var want []wireGuardPeer
		free := slices.Clone(cidrs)
		random.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
		for n := range byte(4) {
			if random.IntN(3) == 0 {
				continue
			}
			take := random.IntN(min(3, len(free)+1))
			want = append(want, wireGuardPeer{
				key: publicKey(n + 1), endpoint: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(random.IntN(3))}), wireGuardPort), allowed: free[:take],
			})
			free = free[take:]
		}
		if random.IntN(10) == 0 {
			d.err = errors.New("busy")
			_ = w.commit(want)
			d.err = nil
		}
		if err := w.commit(want); err != nil {
			t.Fatal(err)
		}
		if d.state.PrivateKey != w.keys.current || d.state.ListenPort != wireGuardPort {
			t.Fatalf("key or port differ: %v, %d", d.state.PrivateKey, d.state.ListenPort)
		}
		if len(d.peers) != len(want) {
			t.Fatalf("the kernel has %d peers, want %d", len(d.peers), len(want))
		}
		for _, p := range want {
			have := d.peers[p.key]
			if have == nil || have.Endpoint.AddrPort() != p.endpoint || !sameAllowed(have.AllowedIPs, p.allowed) {
				t.Fatalf("peer %+v is %+v", p, have)
			}
		}
		// A second commit changes nothing, even if a peer sends from another address.
		for _, p := range d.peers {
			p.Endpoint = &net.UDPAddr{IP: net.IPv4(203, 0, 113, 1), Port: 1}
		}
		before := d.writes
		if err := w.commit(want); err != nil || d.writes != before {
			t.Fatalf("the same peers were written again: %v", err)
		}
		for _, p := range want {
			d.peers[p.key].Endpoint = net.UDPAddrFromAddrPort(p.endpoint)
		}
	}
}

// TestMovedAddresses checks that addresses move from a key to its successor.
func TestMovedAddresses(t *testing.T) {
	d := &fakeDevice{peers: map[wgtypes.Key]*wgtypes.Peer{}}
	w := newWireGuard("none", nil)
	w.open = func() (device, error) { return d, nil }
	endpoint, cidr := netip.MustParseAddrPort("192.0.2.2:51820"), prefixes("10.1.1.0/24")
	for _, step := range [][]wireGuardPeer{
		{{publicKey(1), endpoint, cidr}},
		{{publicKey(1), endpoint, cidr}, {publicKey(2), endpoint, nil}},
		{{publicKey(2), endpoint, cidr}},
	} {
		if err := w.commit(step); err != nil {
			t.Fatal(err)
		}
	}
	if keys := slices.Collect(maps.Keys(d.peers)); len(keys) != 1 || keys[0] != publicKey(2) {
		t.Fatalf("peers %v", keys)
	}
	if have := d.peers[publicKey(2)].AllowedIPs; len(have) != 1 || netlinkutil.Prefix(&have[0]) != cidr[0] {
		t.Errorf("allowed addresses %v", have)
	}
}

func TestKeyRotation(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var r rotation
	if err := r.start(wgtypes.Key{}, netannotation.WireGuardKeys{}, now); err != nil {
		t.Fatal(err)
	}
	step := func(after time.Duration) netannotation.WireGuardKeys {
		t.Helper()
		now = now.Add(after)
		keys, err := r.step(now)
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	first := step(0)
	if first.Key == "" || first.Next != "" || r.due() != now.Add(keyLifetime) {
		t.Fatalf("the first key: %+v, due %v", first, r.due())
	}
	if again := step(keyLifetime - time.Second); again != first {
		t.Fatalf("the key has changed before its end: %+v", again)
	}
	announced := step(time.Second)
	if announced.Key != first.Key || announced.Next == "" || r.due() != now.Add(announcement) {
		t.Fatalf("the announcement: %+v, due %v", announced, r.due())
	}
	if again := step(announcement - time.Second); again != announced {
		t.Fatalf("the announced key has changed: %+v", again)
	}
	second := step(time.Second)
	if second.Key != announced.Next || second.Next != "" || !second.Created.Equal(now) || r.current.PublicKey().String() != second.Key {
		t.Fatalf("the second key: %+v", second)
	}

	// Another process continues with the key of the kernel and its age, but not with the age of another key.
	private := r.current
	if err := r.start(private, second, now.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if r.current != private || r.due() != now.Add(keyLifetime) {
		t.Errorf("after a restart: due %v", r.due())
	}
	if err := r.start(private, first, now.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if r.due() != now.Add(time.Hour+keyLifetime) {
		t.Errorf("with an unknown age: due %v", r.due())
	}
	if text := netannotation.FormatWireGuard(second); netannotation.ParseWireGuard(text) != second {
		t.Errorf("%s is not read as it was written", text)
	}
}
