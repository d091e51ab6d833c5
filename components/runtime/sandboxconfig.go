//go:build cgo

package runtime

import (
	"fmt"
	"net/netip"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/internal/pod/podnet"
)

// namespaceOptions returns which namespaces the pod shares with the host or among its containers. It is nil if the
// request does not specify any; its getters then return the defaults.
func namespaceOptions(c *runtimeapi.PodSandboxConfig) *runtimeapi.NamespaceOption {
	return c.GetLinux().GetSecurityContext().GetNamespaceOptions()
}

// hostNetwork reports whether the sandbox uses the host's network namespace.
func hostNetwork(c *runtimeapi.PodSandboxConfig) bool {
	return namespaceOptions(c).GetNetwork() == runtimeapi.NamespaceMode_NODE
}

// hostIPC reports whether the sandbox uses the host's IPC namespace.
func hostIPC(c *runtimeapi.PodSandboxConfig) bool {
	return namespaceOptions(c).GetIpc() == runtimeapi.NamespaceMode_NODE
}

// portMappings converts the port mappings of a CRI request. Mappings without a host port are omitted. It returns an
// error for invalid ports or addresses.
func portMappings(list []*runtimeapi.PortMapping) ([]podnet.PortMapping, error) {
	var out []podnet.PortMapping
	for _, p := range list {
		if p.GetHostPort() == 0 {
			continue
		}
		if p.GetHostPort() < 0 || p.GetHostPort() > 65535 || p.GetContainerPort() < 1 || p.GetContainerPort() > 65535 {
			return nil, fmt.Errorf("invalid host port %d for container port %d", p.GetHostPort(), p.GetContainerPort())
		}
		m := podnet.PortMapping{
			Protocol: strings.ToLower(p.GetProtocol().String()),
			HostPort: uint16(p.GetHostPort()), PodPort: uint16(p.GetContainerPort()),
		}
		if p.GetHostIp() != "" {
			ip, err := netip.ParseAddr(p.GetHostIp())
			if err != nil {
				return nil, fmt.Errorf("invalid host IP of a host port: %w", err)
			}
			m.HostIP = ip
		}
		out = append(out, m)
	}
	return out, nil
}
