package network

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/netlinkutil"
	"hyperkube/internal/pod/netannotation"
)

const (
	// wireGuardPort is the UDP port at which nodes receive encrypted packets, the usual one of WireGuard.
	wireGuardPort = 51820
	// encrypted4 and encrypted6 are the bytes that WireGuard adds to a packet, over IPv4 and IPv6.
	encrypted4, encrypted6 = 60, 80
)

// device reads and writes the configuration of WireGuard links. *wgctrl.Client implements it.
type device interface {
	Device(name string) (*wgtypes.Device, error)
	ConfigureDevice(name string, cfg wgtypes.Config) error
	Close() error
}

// wireGuard maintains the WireGuard link of this node. Only the kernel has the private key, so a new process continues
// with the key of the previous one, and a reboot creates a new key. It must be used by a single goroutine.
type wireGuard struct {
	link    string
	journal *hostjournal.Journal
	open    func() (device, error)
	now     func() time.Time

	keys rotation
	// endpoints are the addresses of the peers that were written to the kernel. The kernel changes the address of a peer
	// that sends from another one, so its current addresses are not compared.
	endpoints map[wgtypes.Key]netip.AddrPort
}

func newWireGuard(link string, journal *hostjournal.Journal) *wireGuard {
	return &wireGuard{
		link: link, journal: journal, now: time.Now, endpoints: map[wgtypes.Key]netip.AddrPort{},
		open: func() (device, error) { return wgctrl.New() },
	}
}

// active reports whether this process maintains the link.
func (w *wireGuard) active() bool { return w.keys.current != (wgtypes.Key{}) }

// checkWireGuard returns an error that names the remedy if the kernel cannot create WireGuard links.
func checkWireGuard() error {
	const name = "wireguard"
	unsupported, err := netlinkutil.Unsupported(&netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{Name: name}})
	if err == nil {
		err = unsupported[name]
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("the kernel cannot create WireGuard links: run `modprobe wireguard`, or use a kernel since 5.6 with the module wireguard: %w", err)
}

// prepare creates the link with this node's key if there is none, and replaces a key that has reached the end of its life.
// It returns the value that must be published before commit is called.
func (w *wireGuard) prepare(self member) (netannotation.WireGuardKeys, error) {
	if err := w.ensureLink(self); err != nil {
		return netannotation.WireGuardKeys{}, fmt.Errorf("creating link %s: %w", w.link, err)
	}
	if !w.active() {
		if err := w.withDevice(func(_ device, state *wgtypes.Device) error {
			return w.keys.start(state.PrivateKey, self.keys, w.now())
		}); err != nil {
			return netannotation.WireGuardKeys{}, err
		}
	}
	return w.keys.step(w.now())
}

// withDevice calls f with the configuration of the link as the kernel has it, and returns its error.
func (w *wireGuard) withDevice(f func(d device, state *wgtypes.Device) error) error {
	d, err := w.open()
	if err != nil {
		return fmt.Errorf("opening the configuration of WireGuard: %w", err)
	}
	defer func() { _ = d.Close() }() // closes only the socket
	state, err := d.Device(w.link)
	if err != nil {
		return fmt.Errorf("reading the configuration of link %s: %w", w.link, err)
	}
	return f(d, state)
}

// commit writes the keys, after they were published, and the peers to the kernel, and removes other peers. A packet to an
// address that no peer is allowed to have is rejected.
func (w *wireGuard) commit(peers []wireGuardPeer) error {
	return w.withDevice(func(d device, state *wgtypes.Device) error {
		cfg := wgtypes.Config{Peers: w.peerChanges(state.Peers, peers)}
		if key := w.keys.current; state.PrivateKey != key {
			cfg.PrivateKey = &key
		}
		if port := wireGuardPort; state.ListenPort != port {
			cfg.ListenPort = &port
		}
		if cfg.PrivateKey == nil && cfg.ListenPort == nil && len(cfg.Peers) == 0 {
			return nil
		}
		if err := d.ConfigureDevice(w.link, cfg); err != nil {
			return fmt.Errorf("configuring link %s: %w", w.link, err)
		}
		clear(w.endpoints)
		for _, p := range peers {
			w.endpoints[p.key] = p.endpoint
		}
		return nil
	})
}

// peerChanges returns the changes that turn the peers have into want. It does not change peers that are correct, so their
// connections continue.
func (w *wireGuard) peerChanges(have []wgtypes.Peer, want []wireGuardPeer) []wgtypes.PeerConfig {
	var out []wgtypes.PeerConfig
	current := map[wgtypes.Key]wgtypes.Peer{}
	for _, h := range have {
		current[h.PublicKey] = h
		if !slices.ContainsFunc(want, func(p wireGuardPeer) bool { return p.key == h.PublicKey }) {
			out = append(out, wgtypes.PeerConfig{PublicKey: h.PublicKey, Remove: true})
		}
	}
	for _, p := range want {
		h, exists := current[p.key]
		c := wgtypes.PeerConfig{PublicKey: p.key}
		changed := !exists
		if w.endpoints[p.key] != p.endpoint || !exists {
			c.Endpoint, changed = net.UDPAddrFromAddrPort(p.endpoint), true
		}
		if !exists || !sameAllowed(h.AllowedIPs, p.allowed) {
			c.ReplaceAllowedIPs, changed = true, true
			for _, prefix := range p.allowed {
				c.AllowedIPs = append(c.AllowedIPs, *netlinkutil.IPNet(prefix))
			}
		}
		if changed {
			out = append(out, c)
		}
	}
	return out
}

// sameAllowed reports whether have, in any order, are the prefixes want.
func sameAllowed(have []net.IPNet, want []netip.Prefix) bool {
	if len(have) != len(want) {
		return false
	}
	for i := range have {
		if !slices.Contains(want, netlinkutil.Prefix(&have[i])) {
			return false
		}
	}
	return true
}

// ensureLink creates the link if it does not exist, and gives it its MTU and the addresses from which the node's processes
// send to pods of other nodes.
func (w *wireGuard) ensureLink(self member) error {
	overhead := encrypted4
	if self.address.Is6() {
		overhead = encrypted6
	}
	under, err := linkOf(self.address)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = w.link, under.Attrs().MTU-overhead
	link, err := ensureLink(w.journal, &netlink.Wireguard{LinkAttrs: attrs}, self)
	if err != nil || link.Attrs().MTU == attrs.MTU {
		return err
	}
	return netlink.LinkSetMTU(link, attrs.MTU)
}
