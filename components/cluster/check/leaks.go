package check

import (
	"context"
	"encoding/json"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/internal/host/packetfilter"
)

// leakChecks returns the checks for objects in the kernel that belong to no pod and no cluster.
func leakChecks() []check {
	return []check{{"leaked-links", checkLeakedLinks}, {"leaked-mounts", checkLeakedMounts}, {"leaked-cgroups", checkLeakedCgroups}, {"leaked-rules", checkLeakedRules}}
}

// sandboxes contains the IDs of the pod sandboxes that the container runtime has recorded, and the UIDs of their pods.
type sandboxes struct{ ids, uids map[string]bool }

// sandboxes returns the IDs of the pod sandboxes that the container runtime has recorded on disk, and the UIDs of
// their pods.
func (m *Machine) sandboxes() sandboxes {
	out := sandboxes{map[string]bool{}, map[string]bool{}}
	dir := path.Join(m.Layout.Runtime(), "sandboxes")
	for _, id := range m.names(dir) {
		out.ids[id] = true
		// The file consists of versions of the record, the newest last.
		lines := strings.Split(m.read(path.Join(dir, id, "record.json")), "\n")
		for _, line := range slices.Backward(lines) {
			var record struct{ Config []byte }
			config := &runtimeapi.PodSandboxConfig{}
			if json.Unmarshal([]byte(line), &record) == nil && proto.Unmarshal(record.Config, config) == nil {
				out.uids[config.GetMetadata().GetUid()] = true
				break
			}
		}
	}
	return out
}

// ownLink reports whether a link belongs to this program.
func (m *Machine) ownLink(name string) bool {
	return name == m.Layout.Bridge() || name == m.Layout.Tunnel() || name == m.Layout.WireGuard() || strings.HasPrefix(name, m.Layout.LinkPrefix+"-") || strings.HasPrefix(name, m.Layout.LinkPrefix+"v") || m.isNodeLink(name)
}

// isNodeLink reports whether a link connects an additional node of `up --nodes`.
func (m *Machine) isNodeLink(name string) bool {
	number, ok := strings.CutPrefix(name, m.Layout.LinkPrefix+"n")
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}

// hasJournal reports whether the machine has recorded changes, which `hyperkube down` reverts.
func (m *Machine) hasJournal() bool {
	return slices.ContainsFunc(m.names(path.Dir(m.Layout.Journal("node"))), func(name string) bool { return path.Ext(name) == ".jsonl" })
}

// checkLeakedLinks finds links of pods that do not exist any more and, on a machine without a cluster, all other links
// of this program.
func checkLeakedLinks(_ context.Context, m *Machine, o *outcome) {
	pods, prefix := m.sandboxes(), m.Layout.LinkPrefix+"v"
	for _, link := range m.Network.Links {
		id, isPod := strings.CutPrefix(link.Name, prefix)
		switch {
		case isPod && link.Type == "veth":
			if !slices.ContainsFunc(slices.Collect(maps.Keys(pods.ids)), func(known string) bool { return strings.HasPrefix(known, id) }) {
				o.warnf("run `ip link delete "+link.Name+"`", "the link %s belongs to a pod that does not exist any more", link.Name)
			}
		case m.ownLink(link.Name) && !m.hasJournal() && !m.Cluster.running():
			o.warnf("run `ip link delete "+link.Name+"`", "the link %s remains of a cluster that does not exist any more, and its routes may take the packets of other networks", link.Name)
		}
	}
}

// checkLeakedMounts finds mounts of sandboxes and containers that do not exist any more.
func checkLeakedMounts(_ context.Context, m *Machine, o *outcome) {
	mounts, err := m.mounts()
	if err != nil {
		o.skip("the mount table cannot be read")
		return
	}
	for _, kind := range []string{"sandboxes", "containers"} {
		known := m.names(path.Join(m.Layout.Runtime(), kind))
		for _, mount := range mounts {
			below, ok := strings.CutPrefix(mount.Mountpoint, path.Join(m.Layout.RuntimeState(), kind)+"/")
			id, _, _ := strings.Cut(below, "/")
			if ok && !slices.Contains(known, id) {
				o.warnf("run `umount "+mount.Mountpoint+"`", "%s is the mount of a container or pod that does not exist any more, and may keep disk space in use", mount.Mountpoint)
			}
		}
	}
}

// minAge is the age from which a cgroup of a pod without a sandbox is a leak. Younger ones may belong to a pod that is
// starting or terminating.
const minAge = 5 * time.Minute

// checkLeakedCgroups finds cgroups of pods that do not exist any more.
func checkLeakedCgroups(_ context.Context, m *Machine, o *outcome) {
	groups, err := openCgroups(m)
	if err != nil {
		o.skip("there is no cgroup hierarchy")
		return
	}
	pods := m.sandboxes()
	root := groups.Dir("memory", path.Join("/", m.Layout.CgroupRoot, "kubepods"))
	for _, parent := range []string{root, path.Join(root, "burstable"), path.Join(root, "besteffort")} {
		for _, name := range m.names(parent) {
			uid, isPod := strings.CutPrefix(name, "pod")
			if !isPod || pods.uids[uid] {
				continue
			}
			dir := path.Join(parent, name)
			if info, err := fs.Stat(m.Files, rel(dir)); err != nil || !info.IsDir() || m.Now.Sub(info.ModTime()) < minAge {
				continue
			}
			o.warnf("run `find "+dir+" -depth -type d -exec rmdir {} +`", "the cgroup %s belongs to a pod that does not exist any more", dir)
		}
	}
}

// checkLeakedRules finds packet filter rules of a cluster on a machine that has none.
func checkLeakedRules(ctx context.Context, m *Machine, o *outcome) {
	if m.hasJournal() || m.Cluster.running() {
		o.skip("the rules belong to the cluster of this machine")
		return
	}
	for _, family := range []packetfilter.Family{packetfilter.IPv4, packetfilter.IPv6} {
		saved, err := m.Probes.Rules(ctx, family)
		if err != nil {
			continue
		}
		ours, others := 0, 0
		for chain := range packetfilter.ParseState(saved).Rules {
			if strings.HasPrefix(chain.Name, "HK-") {
				ours++
			} else if strings.HasPrefix(chain.Name, "KUBE-") && !slices.Contains([]string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY", "KUBE-PROXY-CANARY"}, chain.Name) {
				others++
			}
		}
		program := "iptables"
		if family == packetfilter.IPv6 {
			program = "ip6tables"
		}
		if ours+others > 0 {
			o.warnf("run `"+program+"-save | grep -vE 'KUBE-|HK-|hyperkube' | "+program+"-restore`", "%d packet filter chains for IPv%s remain of a cluster that does not exist any more, and may drop or redirect packets", ours+others, family)
		}
		if chains, err := m.Probes.NFTables(ctx, family); err == nil && chains > 0 {
			protocol := map[packetfilter.Family]string{packetfilter.IPv4: "ip", packetfilter.IPv6: "ip6"}[family]
			o.warnf("run `nft delete table "+protocol+" hyperkube`", "%d chains of nftables for IPv%s remain of a cluster that does not exist any more, and may drop or redirect packets", chains, family)
		}
	}
}
