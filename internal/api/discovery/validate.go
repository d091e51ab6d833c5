package discovery

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"hyperkube/internal/api/validate"
)

// Size limits of an EndpointSlice, in numbers of elements.
const (
	maxEndpoints      = 1000
	maxAddresses      = 100
	maxPorts          = 20000
	maxTopologyLabels = 16
	maxZoneHints      = 8
	maxNodeHints      = 8
)

var (
	addressTypes = []discoveryv1.AddressType{discoveryv1.AddressTypeFQDN, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}
	protocols    = []corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP}
)

// validateEndpointSlice validates a slice. old is the stored slice, or nil on create. Addresses
// that old contains may be in a legacy notation, and unchanged endpoints are not validated.
func validateEndpointSlice(s, old *discoveryv1.EndpointSlice) field.ErrorList {
	var errs field.ErrorList
	switch {
	case s.AddressType == "":
		errs = append(errs, field.Required(field.NewPath("addressType"), "").MarkCoveredByDeclarative())
	case !slices.Contains(addressTypes, s.AddressType):
		errs = append(errs, field.NotSupported(field.NewPath("addressType"), s.AddressType, addressTypes).MarkCoveredByDeclarative())
	}
	if old != nil && s.AddressType != old.AddressType {
		validate.ClearDeclared(errs, field.NewPath("addressType"))
		e := validate.Errors{List: errs}
		e.Immutable(field.NewPath("addressType"))
		errs = e.List
	}
	var known []string
	if old != nil {
		for i := range old.Endpoints {
			known = append(known, old.Endpoints[i].Addresses...)
		}
	}
	errs = append(errs, validatePorts(s.Ports, field.NewPath("ports"))...)
	endpoints := validateEndpoints(s.Endpoints, s.AddressType, known, field.NewPath("endpoints"))
	if len(endpoints) > 0 && old != nil && apiequality.Semantic.DeepEqual(s.Endpoints, old.Endpoints) {
		// Unchanged endpoints were valid when they were stored.
		endpoints = nil
	}
	return append(errs, endpoints...)
}

func validateEndpoints(endpoints []discoveryv1.Endpoint, typ discoveryv1.AddressType, known []string, path *field.Path) field.ErrorList {
	if len(endpoints) > maxEndpoints {
		return field.ErrorList{field.TooMany(path, len(endpoints), maxEndpoints)}
	}
	var errs field.ErrorList
	for i := range endpoints {
		errs = append(errs, validateEndpoint(&endpoints[i], typ, known, path.Index(i))...)
	}
	return errs
}

func validateEndpoint(e *discoveryv1.Endpoint, typ discoveryv1.AddressType, known []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := path.Child("addresses")
	switch {
	case len(e.Addresses) == 0:
		errs = append(errs, field.Required(at, "").MarkCoveredByDeclarative())
	case len(e.Addresses) > maxAddresses:
		errs = append(errs, field.TooMany(at, len(e.Addresses), maxAddresses).MarkCoveredByDeclarative())
	}
	for i, address := range e.Addresses {
		errs = append(errs, validateAddress(address, typ, known, at, i)...)
	}
	if e.NodeName != nil {
		for _, msg := range apivalidation.NameIsDNSSubdomain(*e.NodeName, false) {
			errs = append(errs, field.Invalid(path.Child("nodeName"), *e.NodeName, msg))
		}
	}
	errs = append(errs, validateTopology(e.DeprecatedTopology, path.Child("deprecatedTopology"))...)
	if e.Hostname != nil {
		for _, msg := range validation.IsDNS1123Label(*e.Hostname) {
			errs = append(errs, field.Invalid(path.Child("hostname"), *e.Hostname, msg))
		}
	}
	if e.Hints != nil {
		errs = append(errs, validateHints(e.Hints, path.Child("hints"))...)
	}
	return errs
}

// validateAddress validates the address at index i of the list at the path list. typ is the slice's
// address type; known contains the addresses of the stored slice, which may be in a legacy
// notation.
func validateAddress(address string, typ discoveryv1.AddressType, known []string, list *field.Path, i int) field.ErrorList {
	path := list.Index(i)
	var e validate.Errors
	switch typ {
	case discoveryv1.AddressTypeFQDN:
		return validation.IsFullyQualifiedDomainName(path, address)
	case discoveryv1.AddressTypeIPv4:
		if errs := validation.IsValidIPForLegacyField(path, address, true, known); len(errs) > 0 {
			return errs
		}
		if !netutils.IsIPv4String(address) {
			e.Invalid(list, address, "must be an IPv4 address")
		}
	case discoveryv1.AddressTypeIPv6:
		if errs := validation.IsValidIP(path, address); len(errs) > 0 {
			return errs
		}
		if !netutils.IsIPv6String(address) {
			e.Invalid(list, address, "must be an IPv6 address")
		}
	default:
		return nil
	}
	e.EndpointIP(path, address)
	return e.List
}

func validateTopology(topology map[string]string, path *field.Path) field.ErrorList {
	if len(topology) > maxTopologyLabels {
		return field.ErrorList{field.TooMany(path, len(topology), maxTopologyLabels)}
	}
	var errs field.ErrorList
	for key, value := range topology {
		errs = append(errs, metav1validation.ValidateLabelName(key, path.Key(key))...)
		for _, msg := range validation.IsValidLabelValue(value) {
			errs = append(errs, field.Invalid(path.Key(key), value, msg))
		}
	}
	return errs
}

func validateHints(hints *discoveryv1.EndpointHints, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if at := path.Child("forZones"); len(hints.ForZones) > maxZoneHints {
		errs = append(errs, field.TooMany(at, len(hints.ForZones), maxZoneHints))
	} else {
		seen := map[string]bool{}
		for i, zone := range hints.ForZones {
			name := at.Index(i).Child("name")
			if seen[zone.Name] {
				errs = append(errs, field.Duplicate(name, zone.Name))
			}
			seen[zone.Name] = true
			for _, msg := range validation.IsValidLabelValue(zone.Name) {
				errs = append(errs, field.Invalid(name, zone.Name, msg))
			}
		}
	}
	if at := path.Child("forNodes"); len(hints.ForNodes) > maxNodeHints {
		errs = append(errs, field.TooMany(at, len(hints.ForNodes), maxNodeHints))
	} else {
		seen := map[string]bool{}
		for i, node := range hints.ForNodes {
			name := at.Index(i).Child("name")
			if seen[node.Name] {
				errs = append(errs, field.Duplicate(name, node.Name))
			}
			seen[node.Name] = true
			for _, msg := range apivalidation.NameIsDNSSubdomain(node.Name, false) {
				errs = append(errs, field.Invalid(name, node.Name, msg))
			}
		}
	}
	return errs
}

func validatePorts(ports []discoveryv1.EndpointPort, path *field.Path) field.ErrorList {
	if len(ports) > maxPorts {
		return field.ErrorList{field.TooMany(path, len(ports), maxPorts)}
	}
	var errs field.ErrorList
	seen := map[string]bool{}
	for i := range ports {
		p, at := &ports[i], path.Index(i)
		name := ""
		if p.Name != nil {
			name = *p.Name
		}
		if name != "" {
			for _, msg := range validation.IsDNS1123Label(name) {
				errs = append(errs, field.Invalid(at.Child("name"), name, msg))
			}
		}
		if seen[name] {
			errs = append(errs, field.Duplicate(at.Child("name"), name))
		}
		seen[name] = true
		switch {
		case p.Protocol == nil:
			errs = append(errs, field.Required(at.Child("protocol"), ""))
		case !slices.Contains(protocols, *p.Protocol):
			errs = append(errs, field.NotSupported(at.Child("protocol"), *p.Protocol, protocols))
		}
		if p.AppProtocol != nil {
			for _, msg := range validation.IsQualifiedName(*p.AppProtocol) {
				errs = append(errs, field.Invalid(at.Child("appProtocol"), *p.AppProtocol, msg))
			}
		}
	}
	return errs
}
