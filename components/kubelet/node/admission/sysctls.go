package admission

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/util/sysctl"
)

// safeSysctls are the namespaced sysctls that any pod may set.
//
// https://kubernetes.io/docs/tasks/administer-cluster/sysctl-cluster/
var safeSysctls = map[string]bool{
	"kernel.shm_rmid_forced":              true,
	"net.ipv4.ip_local_port_range":        true,
	"net.ipv4.tcp_syncookies":             true,
	"net.ipv4.ping_group_range":           true,
	"net.ipv4.ip_unprivileged_port_start": true,
	"net.ipv4.ip_local_reserved_ports":    true,
	"net.ipv4.tcp_keepalive_time":         true,
	"net.ipv4.tcp_fin_timeout":            true,
	"net.ipv4.tcp_keepalive_intvl":        true,
	"net.ipv4.tcp_keepalive_probes":       true,
	"net.ipv4.tcp_rmem":                   true,
	"net.ipv4.tcp_wmem":                   true,
	"net.ipv4.tcp_slow_start_after_idle":  true,
	"net.ipv4.tcp_notsent_lowat":          true,
}

// forbiddenSysctl returns why a pod may not set the sysctl, or "" if it may. A sysctl must be safe or allowed
// by the configuration, and its namespace must not be shared with the host.
func (a *Admitter) forbiddenSysctl(pod *v1.Pod, name string) string {
	name = sysctl.NormalizeName(name)
	allowed := safeSysctls[name] || slices.ContainsFunc(a.cfg.AllowedUnsafeSysctls, func(a string) bool {
		prefix, all := strings.CutSuffix(sysctl.NormalizeName(a), "*")
		return prefix == name || all && strings.HasPrefix(name, prefix)
	})
	if !allowed {
		return fmt.Sprintf("%q not allowlisted", name)
	}
	space, _, _ := sysctl.GetNamespace(name)
	shared := map[sysctl.Namespace]bool{
		sysctl.IPCNamespace: pod.Spec.HostIPC, sysctl.NetNamespace: pod.Spec.HostNetwork,
		sysctl.UserNamespace: pod.Spec.HostUsers == nil || *pod.Spec.HostUsers,
	}
	if shared[space] {
		return fmt.Sprintf("%q not allowed with host %s enabled", name, space)
	}
	return ""
}
