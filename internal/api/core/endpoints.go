package core

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

func endpoints() api.Kind[*corev1.Endpoints] {
	return api.Kind[*corev1.Endpoints]{
		Names: api.Names{
			Kind:       "Endpoints",
			ListKind:   "EndpointsList",
			Plural:     "endpoints",
			Singular:   "endpoints",
			ShortNames: []string{"ep"},
		},
		Version:     "v1",
		Scope:       api.Namespaced,
		StoragePath: "services/endpoints",
		New:         func() *corev1.Endpoints { return &corev1.Endpoints{} },
		NewList:     func() runtime.Object { return &corev1.EndpointsList{} },
		Default: func(ep *corev1.Endpoints) {
			for i := range ep.Subsets {
				for j := range ep.Subsets[i].Ports {
					if p := &ep.Subsets[i].Ports[j]; p.Protocol == "" {
						p.Protocol = corev1.ProtocolTCP
					}
				}
			}
		},
		Validate: func(_ context.Context, ep *corev1.Endpoints) field.ErrorList {
			return validateEndpoints(ep, nil)
		},
		Warnings:            endpointsWarnings,
		AllowCreateOnUpdate: true,
		Update: api.KindUpdate[*corev1.Endpoints]{
			AsNew: true,
			Validate: func(_ context.Context, ep, old *corev1.Endpoints) field.ErrorList {
				return validateEndpoints(ep, old)
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Endpoints", "string", corev1.Endpoints{}.SwaggerDoc()["subsets"]),
			api.AgeColumn,
		},
		Row: func(ep *corev1.Endpoints) []any {
			return []any{ep.Name, formatEndpoints(ep), api.Age(ep.CreationTimestamp)}
		},
	}
}

// validateEndpoints validates Endpoints. Addresses of the stored object old, which is nil for a new object, may have
// any syntax that was valid earlier.
func validateEndpoints(ep, old *corev1.Endpoints) field.ErrorList {
	e, subsets := &validate.Errors{}, field.NewPath("subsets")
	var before []string
	if old != nil {
		eachAddress(old, func(a *corev1.EndpointAddress, _ *field.Path) { before = append(before, a.IP) })
	}
	address := func(a *corev1.EndpointAddress, at *field.Path) {
		e.LegacyIP(at.Child("ip"), a.IP, before)
		if a.Hostname != "" {
			e.Label(at.Child("hostname"), a.Hostname)
		}
		if a.NodeName != nil {
			e.InvalidAll(at.Child("nodeName"), *a.NodeName, apivalidation.NameIsDNSSubdomain(*a.NodeName, false))
		}
		e.EndpointIP(at.Child("ip"), a.IP)
	}
	for i := range ep.Subsets {
		s, at := &ep.Subsets[i], subsets.Index(i)
		if len(s.Addresses)+len(s.NotReadyAddresses) == 0 {
			e.Required(at, "must specify `addresses` or `notReadyAddresses`")
		}
		addressesOf(s, at, address)
		for j := range s.Ports {
			validateEndpointPort(e, &s.Ports[j], len(s.Ports) > 1, at.Child("ports").Index(j))
		}
	}
	return e.List
}

// eachAddress calls visit for all addresses in ep, ready and not ready, with the field path of each
// address.
func eachAddress(ep *corev1.Endpoints, visit func(*corev1.EndpointAddress, *field.Path)) {
	for i := range ep.Subsets {
		addressesOf(&ep.Subsets[i], field.NewPath("subsets").Index(i), visit)
	}
}

// addressesOf calls visit for all addresses of the subset at the path at, ready and not ready, with
// the field path of each address.
func addressesOf(s *corev1.EndpointSubset, at *field.Path, visit func(*corev1.EndpointAddress, *field.Path)) {
	for j := range s.Addresses {
		visit(&s.Addresses[j], at.Child("addresses").Index(j))
	}
	for j := range s.NotReadyAddresses {
		visit(&s.NotReadyAddresses[j], at.Child("notReadyAddresses").Index(j))
	}
}

func validateEndpointPort(e *validate.Errors, p *corev1.EndpointPort, needName bool, at *field.Path) {
	switch {
	case p.Name != "":
		e.Label(at.Child("name"), p.Name)
	case needName:
		e.Required(at.Child("name"), "")
	}
	e.InvalidAll(at.Child("port"), p.Port, validation.IsValidPortNum(int(p.Port)))
	validate.RequiredOneOf(e, at.Child("protocol"), p.Protocol, corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)
	if p.AppProtocol != nil {
		e.QualifiedName(at.Child("appProtocol"), *p.AppProtocol)
	}
}

func endpointsWarnings(_ context.Context, ep, _ *corev1.Endpoints) []string {
	var out []string
	eachAddress(ep, func(a *corev1.EndpointAddress, at *field.Path) {
		out = append(out, validate.IPWarnings(at.Child("ip"), a.IP)...)
	})
	return out
}

// formatEndpoints returns the cell of the column Endpoints: the first three ready endpoints as
// address:port, and the number of others. It returns "<none>" if there are no subsets.
func formatEndpoints(ep *corev1.Endpoints) string {
	const most = 3
	var shown []string
	count := 0
	add := func(text string) {
		if count++; count <= most {
			shown = append(shown, text)
		}
	}
	for i := range ep.Subsets {
		s := &ep.Subsets[i]
		for j := range s.Ports {
			for k := range s.Addresses {
				add(net.JoinHostPort(s.Addresses[k].IP, strconv.Itoa(int(s.Ports[j].Port))))
			}
		}
		if len(s.Ports) == 0 {
			for k := range s.Addresses {
				add(s.Addresses[k].IP)
			}
		}
	}
	switch text := strings.Join(shown, ","); {
	case len(ep.Subsets) == 0:
		return "<none>"
	case count > most:
		return fmt.Sprintf("%s + %d more...", text, count-most)
	default:
		return text
	}
}
