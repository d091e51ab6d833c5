package discovery

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

func endpointSlice() api.Kind[*discoveryv1.EndpointSlice] {
	return api.Kind[*discoveryv1.EndpointSlice]{
		Names:   api.Names{Kind: "EndpointSlice", Plural: "endpointslices"},
		Group:   discoveryv1.GroupName,
		Version: "v1",
		Scope:   api.Namespaced,
		New:     func() *discoveryv1.EndpointSlice { return &discoveryv1.EndpointSlice{} },
		NewList: func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
		Default: defaultEndpointSlice,

		PrepareCreate: func(_ context.Context, s *discoveryv1.EndpointSlice) {
			s.Generation = 1
			dropTopology(s)
		},
		Validate: func(_ context.Context, s *discoveryv1.EndpointSlice) field.ErrorList {
			return validateEndpointSlice(s, nil)
		},
		Warnings: endpointSliceWarnings,
		Update: api.KindUpdate[*discoveryv1.EndpointSlice]{
			AsNew: true, NewFirst: true,
			Prepare: func(_ context.Context, s, old *discoveryv1.EndpointSlice) {
				if endpointSliceChanged(s, old) {
					s.Generation = old.Generation + 1
				} else {
					s.Generation = old.Generation
				}
				if !apiequality.Semantic.DeepEqual(s.Endpoints, old.Endpoints) {
					dropTopology(s)
				}
			},
			Validate: func(_ context.Context, s, old *discoveryv1.EndpointSlice) field.ErrorList {
				return validateEndpointSlice(s, old)
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("AddressType", "string", discoveryv1.EndpointSlice{}.SwaggerDoc()["addressType"]),
			api.Column("Ports", "string", discoveryv1.EndpointSlice{}.SwaggerDoc()["ports"]),
			api.Column("Endpoints", "string", discoveryv1.EndpointSlice{}.SwaggerDoc()["endpoints"]),
			api.AgeColumn,
		},
		Row: func(s *discoveryv1.EndpointSlice) []any {
			return []any{s.Name, string(s.AddressType), portsCell(s.Ports), endpointsCell(s.Endpoints), api.Age(s.CreationTimestamp)}
		},
	}
}

// defaultEndpointSlice sets missing port names to "" and missing protocols to TCP.
func defaultEndpointSlice(s *discoveryv1.EndpointSlice) {
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Name == nil {
			p.Name = new(string)
		}
		if p.Protocol == nil {
			tcp := corev1.ProtocolTCP
			p.Protocol = &tcp
		}
	}
}

// endpointSliceChanged reports whether an update must increment the generation: the labels, address
// type, endpoints or ports differ from old. Other metadata does not count.
func endpointSliceChanged(s, old *discoveryv1.EndpointSlice) bool {
	eq := apiequality.Semantic.DeepEqual
	return !eq(s.Labels, old.Labels) ||
		s.AddressType != old.AddressType || !eq(s.Endpoints, old.Endpoints) || !eq(s.Ports, old.Ports)
}

// dropTopology clears the deprecated topology of all endpoints, which clients could only set in
// v1beta1.
func dropTopology(s *discoveryv1.EndpointSlice) {
	for i := range s.Endpoints {
		s.Endpoints[i].DeprecatedTopology = nil
	}
}

// endpointSliceWarnings returns warnings for the address type FQDN and for addresses in a non-standard notation. The
// addresses in slices of Kubernetes' controllers are not checked.
func endpointSliceWarnings(_ context.Context, s, _ *discoveryv1.EndpointSlice) []string {
	var warnings []string
	if s.AddressType == discoveryv1.AddressTypeFQDN {
		return []string{fmt.Sprintf("%s: FQDN endpoints are deprecated", field.NewPath("spec").Child("addressType"))}
	}
	switch s.Labels[discoveryv1.LabelManagedBy] {
	case "endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io":
		// Kubernetes controllers only write addresses in canonical form.
		return nil
	}
	for i := range s.Endpoints {
		for j, address := range s.Endpoints[i].Addresses {
			path := field.NewPath("endpoints").Index(i).Child("addresses").Index(j)
			warnings = append(warnings, validation.GetWarningsForIP(path, address)...)
		}
	}
	return warnings
}

func portsCell(ports []discoveryv1.EndpointPort) string {
	return list(len(ports), "<unset>", func(i int) []string {
		p := &ports[i]
		switch {
		case p.Port != nil:
			return []string{strconv.Itoa(int(*p.Port))}
		case p.Name != nil:
			return []string{*p.Name}
		}
		return []string{"*"}
	})
}

func endpointsCell(endpoints []discoveryv1.Endpoint) string {
	return list(len(endpoints), "<unset>", func(i int) []string { return endpoints[i].Addresses })
}

// list returns a table cell with the first three of all values, and the number of others. at
// returns the values of element i, 0 <= i < n. Without values, list returns empty.
func list(n int, empty string, at func(int) []string) string {
	const most = 3
	var all []string
	for i := range n {
		all = append(all, at(i)...)
	}
	if len(all) > most {
		return fmt.Sprintf("%s + %d more...", strings.Join(all[:most], ","), len(all)-most)
	}
	if text := strings.Join(all, ","); text != "" {
		return text
	}
	return empty
}
