package check

import (
	"context"
	"encoding/json"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// otherClusterChecks returns the checks for other Kubernetes installations on this machine. One of the
// requirementChecks finds their configuration files.
func otherClusterChecks() []check {
	return []check{
		{"other-cluster-processes", checkOtherProcesses},
		{"other-cluster-units", checkOtherUnits},
		{"other-cluster-network", checkOtherLinks},
		{"other-cluster-mounts", checkOtherMounts},
		{"cni-plugins", checkPlugins},
	}
}

// otherProcesses are the names of processes of other Kubernetes distributions, and the services that run them, or
// a command that stops them.
var otherProcesses = map[string]struct {
	services []string
	command  string
}{
	"kubelet": {services: []string{"kubelet"}}, "k3s-server": {services: []string{"k3s"}}, "k3s-agent": {services: []string{"k3s-agent"}},
	"k3s": {services: []string{"k3s"}}, "rke2": {services: []string{"rke2-server", "rke2-agent"}}, "k0s": {command: "k0s stop"}, "kubelite": {command: "snap stop microk8s"},
}

// hasOpenRC reports whether OpenRC manages the services of the machine.
func (m *Machine) hasOpenRC() bool { return m.exists("/run/openrc/softlevel") }

// disableCommand returns the command that stops services and disables them at boot.
func (m *Machine) disableCommand(services ...string) string {
	if !m.hasOpenRC() {
		return "systemctl disable --now " + strings.Join(services, " ")
	}
	var commands []string
	for _, s := range services {
		commands = append(commands, "rc-service "+s+" stop; rc-update del "+s)
	}
	return strings.Join(commands, "; ")
}

// checkOtherProcesses finds the node processes of other clusters. It ignores those in other mount namespaces, for example
// of clusters in containers, and the components of this program.
func checkOtherProcesses(_ context.Context, m *Machine, o *outcome) {
	names := slices.Collect(maps.Keys(otherProcesses))
	found := m.processes(names...)
	for _, name := range slices.Sorted(maps.Keys(found)) {
		for _, pid := range found[name] {
			dir := "/proc/" + strconv.Itoa(pid)
			if path.Base(m.link(dir+"/exe")) == "hyperkube" || m.link(dir+"/ns/mnt") != m.link("/proc/self/ns/mnt") {
				continue
			}
			stop := otherProcesses[name].command
			if stop == "" {
				stop = m.disableCommand(otherProcesses[name].services...)
			}
			o.errorf("stop it with `"+stop+"`", "%s of another Kubernetes cluster runs (process %d) and manages the same directories, ports and packet filter rules", name, pid)
		}
	}
}

// link returns the target of a symbolic link; "" if it cannot be read.
func (m *Machine) link(name string) string {
	target, err := fs.ReadLink(m.Files, rel(name))
	if err != nil {
		return ""
	}
	return target
}

// otherUnits are the services of other Kubernetes distributions.
var otherUnits = []string{"kubelet", "k3s", "k3s-agent", "rke2-server", "rke2-agent", "k0scontroller", "k0sworker", "snap.microk8s.daemon-kubelite"}

// checkOtherUnits finds units that start another cluster at the next boot.
func checkOtherUnits(_ context.Context, m *Machine, o *outcome) {
	for _, unit := range otherUnits {
		if slices.Contains(m.names("/etc/systemd/system/multi-user.target.wants"), unit+".service") {
			o.warnf("run `"+m.disableCommand(unit)+"`", "the systemd unit %s starts another Kubernetes cluster at each boot, which uses the same ports and directories", unit)
		}
		if m.exists("/etc/runlevels/default/" + unit) {
			o.warnf("run `"+m.disableCommand(unit)+"`", "the OpenRC service %s starts another Kubernetes cluster at each boot, which uses the same ports and directories", unit)
		}
	}
}

// otherLinks are the names, or with a trailing "*" the prefixes, of links that network plugins of other clusters create.
var otherLinks = []string{"cni0", "flannel.1", "flannel-v6.1", "cali*", "cilium_*", "kube-ipvs0", "kube-bridge", "weave", "vxlan.calico"}

// checkOtherLinks finds links of other clusters, whose routes may take the packets of pods.
func checkOtherLinks(_ context.Context, m *Machine, o *outcome) {
	if len(m.names(m.Layout.CNIConf())) > 0 {
		o.skip("CNI plugins connect the pods")
		return
	}
	for _, link := range m.Network.Links {
		for _, pattern := range otherLinks {
			if ok, _ := path.Match(pattern, link.Name); ok { // no pattern is malformed
				o.warnf("run `ip link delete "+link.Name+"`", "the link %s of another cluster's network plugin still exists, and its routes may take packets of pods", link.Name)
			}
		}
	}
}

// checkOtherMounts finds mounts of another kubelet in the directory that the kubelet will use.
func checkOtherMounts(_ context.Context, m *Machine, o *outcome) {
	if m.Cluster.Exists {
		o.skip("the directory belongs to the cluster of this machine")
		return
	}
	mounts, err := m.mounts()
	if err != nil {
		o.skip("the mount table cannot be read")
		return
	}
	for _, mount := range mounts {
		if strings.HasPrefix(mount.Mountpoint, m.Layout.Kubelet+"/") {
			o.errorf("run `umount -R "+mount.Mountpoint+"`, for all mounts that `findmnt -R "+m.Layout.Kubelet+"` prints", "%s is still mounted by another cluster's kubelet, so its pods cannot be cleaned up", mount.Mountpoint)
			return
		}
	}
}

// checkPlugins checks that the CNI plugins which a configuration names are installed, and reports a configuration
// that another cluster may have left.
func checkPlugins(_ context.Context, m *Machine, o *outcome) {
	dir := m.Layout.CNIConf()
	var configured []string
	for _, name := range m.names(dir) {
		if ext := path.Ext(name); ext == ".conf" || ext == ".conflist" || ext == ".json" {
			configured = append(configured, name)
		}
	}
	if len(configured) == 0 {
		return
	}
	file := path.Join(dir, configured[0])
	remove := "if it belongs to a cluster that does not exist any more, delete it: `rm " + file + "`"
	for _, plugin := range pluginTypes(m.read(file)) {
		if !m.exists("/opt/cni/bin/"+plugin) && !m.exists("/usr/lib/cni/"+plugin) {
			o.errorf(remove, "%s configures the CNI plugin %s, which is not installed, so no pod can start", file, plugin)
			return
		}
	}
	if !m.Cluster.Exists {
		o.warnf(remove, "%s exists, so its CNI plugins connect pods instead of the built-in network", file)
	}
}

// pluginTypes returns the types of the plugins in a CNI configuration.
func pluginTypes(text string) []string {
	var config struct {
		Type    string
		Plugins []struct{ Type string }
	}
	if json.Unmarshal([]byte(text), &config) != nil {
		return nil
	}
	var types []string
	if config.Type != "" {
		types = append(types, config.Type)
	}
	for _, p := range config.Plugins {
		types = append(types, p.Type)
	}
	return types
}
