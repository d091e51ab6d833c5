package network

import (
	"fmt"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"hyperkube/internal/pod/netannotation"
)

const (
	// keyLifetime is how long a node uses a private key.
	keyLifetime = 24 * time.Hour
	// announcement is how long the next key is published before it is used. In this time, the other nodes configure it, so
	// that they accept the first packet with it.
	announcement = time.Minute
)

// rotation determines which private key a node uses. Session keys, which encrypt packets, are derived by the kernel and
// change every two minutes.
type rotation struct {
	current wgtypes.Key
	created time.Time
	// next replaces current after it has been published for the time announcement. It is zero if there is none.
	next      wgtypes.Key
	announced time.Time
}

// start sets the current key: key, which the kernel has, or a new one if that is zero. Its age is known if it is the key
// that this node has published.
func (r *rotation) start(key wgtypes.Key, published netannotation.WireGuardKeys, now time.Time) error {
	*r = rotation{current: key, created: now}
	if key == (wgtypes.Key{}) {
		var err error
		r.current, err = newKey()
		return err
	}
	if key.PublicKey().String() == published.Key && published.Created.Before(now) {
		r.created = published.Created
	}
	return nil
}

// step creates the next key, or makes it the current one, when the time for it has come. It returns the public keys.
func (r *rotation) step(now time.Time) (netannotation.WireGuardKeys, error) {
	switch {
	case r.next != (wgtypes.Key{}):
		if !now.Before(r.announced.Add(announcement)) {
			r.current, r.created, r.next = r.next, now, wgtypes.Key{}
		}
	case !now.Before(r.created.Add(keyLifetime)):
		next, err := newKey()
		if err != nil {
			return netannotation.WireGuardKeys{}, err
		}
		r.next, r.announced = next, now
	}
	out := netannotation.WireGuardKeys{Key: r.current.PublicKey().String(), Created: r.created.UTC().Truncate(time.Second)}
	if r.next != (wgtypes.Key{}) {
		out.Next = r.next.PublicKey().String()
	}
	return out, nil
}

// due returns the time at which step must be called again.
func (r *rotation) due() time.Time {
	if r.next != (wgtypes.Key{}) {
		return r.announced.Add(announcement)
	}
	return r.created.Add(keyLifetime)
}

func newKey() (wgtypes.Key, error) {
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return key, fmt.Errorf("creating a WireGuard key: %w", err)
	}
	return key, nil
}
