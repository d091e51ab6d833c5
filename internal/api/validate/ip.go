package validate

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

// LegacyIP validates an IP address in a field that has always accepted notations with leading
// zeros, such as 010.0.0.1. They are now only accepted if the stored object already contains them:
// before contains its values of the field.
func (e *Errors) LegacyIP(at *field.Path, value string, before []string) {
	e.Add(validation.IsValidIPForLegacyField(at, value, true, before))
}

// LegacyCIDR validates a CIDR by the same rules as LegacyIP validates an IP address: before contains the stored values
// of the field, which remain valid in a legacy notation.
func (e *Errors) LegacyCIDR(at *field.Path, value string, before []string) {
	e.Add(validation.IsValidCIDRForLegacyField(at, value, true, before))
}

// EndpointIP adds errors if value is not an IP address that other machines can reach: an unspecified, loopback or
// link-local address is not allowed.
func (e *Errors) EndpointIP(at *field.Path, value string) {
	ip := netutils.ParseIPSloppy(value)
	refuse := func(is bool, detail string) {
		if is {
			e.Add(field.ErrorList{field.Invalid(at, value, detail).WithOrigin("format=non-special-ip")})
		}
	}
	if ip == nil {
		e.Add(field.ErrorList{field.Invalid(at, value, "must be a valid IP address").WithOrigin("format=ip-sloppy")})
		return
	}
	refuse(ip.IsUnspecified(), fmt.Sprintf("may not be unspecified (%v)", value))
	refuse(ip.IsLoopback(), "may not be in the loopback range (127.0.0.0/8, ::1/128)")
	refuse(ip.IsLinkLocalUnicast(), "may not be in the link-local range (169.254.0.0/16, fe80::/10)")
	refuse(ip.IsLinkLocalMulticast(), "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")
}

// IPWarnings returns warnings for an IP address in a non-standard notation, and nil for invalid
// addresses, because validation rejects them.
func IPWarnings(at *field.Path, value string) []string {
	if netutils.ParseIPSloppy(value) == nil {
		return nil
	}
	return validation.GetWarningsForIP(at, value)
}

// CIDRWarnings returns warnings for a CIDR in a non-standard notation, and nil for an invalid one, because validation
// rejects it.
func CIDRWarnings(at *field.Path, value string) []string {
	if _, _, err := netutils.ParseCIDRSloppy(value); err != nil {
		return nil
	}
	return validation.GetWarningsForCIDR(at, value)
}
