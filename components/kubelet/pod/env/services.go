package env

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Services returns the environment variables with the addresses of Services for a pod in namespace: those of
// all Services in its namespace if links is true (enableServiceLinks), and always those of
// default/kubernetes. Services without a cluster IP are omitted.
func Services(services []*v1.Service, namespace string, links bool) []Var {
	byName := map[string]*v1.Service{}
	for _, s := range services {
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == v1.ClusterIPNone {
			continue
		}
		switch {
		case s.Namespace == namespace && links:
			byName[s.Name] = s
		case s.Namespace == metaDefault && s.Name == "kubernetes":
			if _, taken := byName[s.Name]; !taken {
				byName[s.Name] = s
			}
		}
	}
	var out []Var
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		out = append(out, serviceVars(byName[name])...)
	}
	return out
}

// metaDefault is the namespace of the Service kubernetes.
const metaDefault = "default"

// serviceVars returns the variables of one Service: NAME_SERVICE_HOST, NAME_SERVICE_PORT and those of Docker
// links. A Service without ports has none.
func serviceVars(s *v1.Service) []Var {
	if len(s.Spec.Ports) == 0 {
		return nil
	}
	prefix := envName(s.Name)
	ip := s.Spec.ClusterIP
	out := []Var{
		{prefix + "_SERVICE_HOST", ip},
		{prefix + "_SERVICE_PORT", strconv.Itoa(int(s.Spec.Ports[0].Port))},
	}
	for _, p := range s.Spec.Ports {
		if p.Name != "" {
			out = append(out, Var{prefix + "_SERVICE_PORT_" + envName(p.Name), strconv.Itoa(int(p.Port))})
		}
	}
	for i, p := range s.Spec.Ports {
		protocol := string(v1.ProtocolTCP)
		if p.Protocol != "" {
			protocol = string(p.Protocol)
		}
		port := strconv.Itoa(int(p.Port))
		url := fmt.Sprintf("%s://%s", strings.ToLower(protocol), net.JoinHostPort(ip, port))
		if i == 0 {
			out = append(out, Var{prefix + "_PORT", url})
		}
		long := prefix + "_PORT_" + port + "_" + strings.ToUpper(protocol)
		out = append(out,
			Var{long, url},
			Var{long + "_PROTO", strings.ToLower(protocol)},
			Var{long + "_PORT", port},
			Var{long + "_ADDR", ip},
		)
	}
	return out
}

// envName converts a name to the form that it has in variable names.
func envName(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "-", "_")) }
