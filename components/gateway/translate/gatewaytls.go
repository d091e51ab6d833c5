package translate

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"hyperkube/components/gateway/model"
)

// requestAddresses sets the addresses that a Gateway requests, and its problem if one of them has another type than
// IPAddress. An address without a value requests any address.
func (gw *gateway) requestAddresses() {
	for _, a := range gw.Spec.Addresses {
		if kind := ptr.Deref(a.Type, gatewayv1.IPAddressType); kind != gatewayv1.IPAddressType {
			gw.problem = &problem{string(gatewayv1.GatewayReasonUnsupportedAddress), "addresses of the type " + string(kind) + " are not supported"}
			return
		}
		if a.Value != "" {
			gw.addresses = append(gw.addresses, a.Value)
		}
	}
}

// granted returns those of the addresses of a Gateway's Service that the Gateway has, and a requested address that the Service
// does not have. It is empty if the Service has all.
func (gw *gateway) granted(addresses []gatewayv1.GatewayStatusAddress) (own []gatewayv1.GatewayStatusAddress, missing string) {
	if len(gw.addresses) == 0 {
		return addresses, ""
	}
	for _, requested := range gw.addresses {
		i := slices.IndexFunc(addresses, func(a gatewayv1.GatewayStatusAddress) bool { return a.Value == requested })
		if i < 0 {
			missing = requested
			continue
		}
		own = append(own, addresses[i])
	}
	return own, missing
}

// resolveClientCertificate sets the certificate with which a Gateway authenticates to backends with TLS, or the problem of
// the reference. Backends are then used without a certificate.
func (t *translator) resolveClientCertificate(gw *gateway) {
	if gw.Spec.TLS == nil || gw.Spec.TLS.Backend == nil || gw.Spec.TLS.Backend.ClientCertificateRef == nil {
		return
	}
	certificate, p := t.certificate(grantFrom{gatewayv1.GroupName, "Gateway", gw.Namespace}, *gw.Spec.TLS.Backend.ClientCertificateRef,
		string(gatewayv1.GatewayReasonInvalidClientCertificateRef), string(gatewayv1.GatewayReasonRefNotPermitted))
	if p != nil {
		gw.unresolved = p
		return
	}
	sum := sha256.New()
	for _, der := range certificate.Certificate {
		sum.Write(der)
	}
	gw.client, gw.clientVersion = certificate, hex.EncodeToString(sum.Sum(nil)[:8])
}

// hasClientCertificate reports whether a Gateway refers to a client certificate.
func (gw *gateway) hasClientCertificate() bool { return gw.client != nil || gw.unresolved != nil }

// authenticate returns a route for a Gateway: a copy whose backends with TLS get the client certificate of the Gateway, or
// the route itself if the Gateway has none or the route has no such backend.
func (t *translator) authenticate(r *model.Route, gw *gateway) *model.Route {
	if gw.client == nil {
		return r
	}
	out, changed := &model.Route{Name: r.Name}, false
	backend := func(b *model.Backend) *model.Backend {
		if b == nil || b.TLS == nil {
			return b
		}
		changed = true
		key := b.Key
		key.TLS += "/" + gw.clientVersion
		if t.backends[key] == nil {
			config := *b.TLS
			config.Certificate = gw.client
			t.backends[key] = &model.Backend{Key: key, TLS: &config}
		}
		return t.backends[key]
	}
	for _, rule := range r.Rules {
		authenticated := *rule
		authenticated.Backends = slices.Clone(rule.Backends)
		for i := range authenticated.Backends {
			authenticated.Backends[i].Backend = backend(authenticated.Backends[i].Backend)
		}
		authenticated.Filters.Mirrors = slices.Clone(rule.Filters.Mirrors)
		for i := range authenticated.Filters.Mirrors {
			authenticated.Filters.Mirrors[i].Backend = backend(authenticated.Filters.Mirrors[i].Backend)
		}
		out.Rules = append(out.Rules, &authenticated)
	}
	if !changed {
		return r
	}
	return out
}

// overlapping returns another listener of the same port that uses TLS and has a hostname that intersects with that of l, or
// nil. Browsers may use a connection for both, so that the TLS configuration of one applies to requests for the other.
func (t *translator) overlapping(l *listener) *model.Listener {
	if l.out == nil || !l.kind.UsesTLS() {
		return nil
	}
	for _, other := range t.ports[l.port].listeners {
		if other != l && other.out != nil && (covers(l.out.Hostname, other.out.Hostname) || covers(other.out.Hostname, l.out.Hostname)) {
			return other.out
		}
	}
	return nil
}
