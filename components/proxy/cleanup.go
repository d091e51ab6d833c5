package proxy

import (
	"context"
	"errors"

	"hyperkube/components/proxy/rules"
	"hyperkube/internal/host/packetfilter"
)

// cleanUp implements --cleanup: it removes the rules and chains of this proxy or of
// upstream's kube-proxy, for both IP families and in all modes. It succeeds if there are none.
func cleanUp(ctx context.Context) error {
	return errors.Join(
		packetfilter.Remove(ctx, packetfilter.IPv4, rules.AllChains()),
		packetfilter.Remove(ctx, packetfilter.IPv6, rules.AllChains()),
	)
}
