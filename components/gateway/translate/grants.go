package translate

import gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

// grantFrom is the group, kind and namespace of an object that refers to others.
type grantFrom struct{ group, kind, namespace string }

// grantTo is the group, kind and namespace of an object that others refer to.
type grantTo struct{ group, kind, namespace string }

// grants are the ReferenceGrants: for each pair of kinds and namespaces the names that may be referred to. The name "" stands
// for all.
type grants map[grantFrom]map[grantTo]map[string]bool

func indexGrants(objects []*gatewayv1.ReferenceGrant) grants {
	g := grants{}
	for _, grant := range objects {
		for _, f := range grant.Spec.From {
			from := grantFrom{string(f.Group), string(f.Kind), string(f.Namespace)}
			if g[from] == nil {
				g[from] = map[grantTo]map[string]bool{}
			}
			for _, target := range grant.Spec.To {
				to := grantTo{string(target.Group), string(target.Kind), grant.Namespace}
				if g[from][to] == nil {
					g[from][to] = map[string]bool{}
				}
				name := ""
				if target.Name != nil {
					name = string(*target.Name)
				}
				g[from][to][name] = true
			}
		}
	}
	return g
}

// allow reports whether an object may refer to the object with the name. References within a namespace need no grant.
func (g grants) allow(from grantFrom, to grantTo, name string) bool {
	if from.namespace == to.namespace {
		return true
	}
	names := g[from][to]
	return names[""] || names[name]
}
