package proxy

import (
	"context"
	"errors"

	"hyperkube/components/proxy/rules"
	"hyperkube/internal/host/packetfilter"
)

// cleanUp removes the rules and chains of any service proxy, for both IP families. It is
// idempotent.
func cleanUp(ctx context.Context) error {
	return errors.Join(
		packetfilter.Remove(ctx, packetfilter.IPv4, rules.AllChains()),
		packetfilter.Remove(ctx, packetfilter.IPv6, rules.AllChains()),
	)
}
