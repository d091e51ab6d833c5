//go:build cgo

package runtime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"hyperkube/components/runtime/cni"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/pod/podnet"
)

// errCNINetwork means that the built-in network is not set up, because CNI plugins connect pods.
var errCNINetwork = errors.New("pods are connected by CNI plugins")

// external returns the CNI network that connects new pods, or nil if the built-in network does.
func (pn *podNetwork) external() (*cni.Network, error) { return pn.plugins.Configured() }

// cniPod returns the parameters of a sandbox for CNI plugins.
func cniPod(s *sandboxState) (cni.Pod, error) {
	rec := s.get()
	m := rec.config.GetMetadata()
	pod := cni.Pod{ID: rec.ID, Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUid(), Capabilities: map[string]any{}}
	if s.handle != nil {
		path := fmt.Sprintf("/proc/%d/ns/net", s.handle.PID())
		// If the process is still alive after the check, the path belongs to it. Otherwise its PID
		// may have been reused by a process whose network must not be touched.
		if _, err := os.Stat(path); err == nil && s.handle.Signal(0) == nil {
			pod.Netns = path
		}
	}
	var ports []map[string]any
	for _, p := range rec.config.GetPortMappings() {
		if p.GetHostPort() > 0 {
			ports = append(ports, map[string]any{
				"hostPort": p.GetHostPort(), "containerPort": p.GetContainerPort(),
				"protocol": strings.ToLower(p.GetProtocol().String()), "hostIP": p.GetHostIp(),
			})
		}
	}
	if len(ports) > 0 {
		pod.Capabilities["portMappings"] = ports
	}
	bandwidth, err := cni.BandwidthOf(rec.config.GetAnnotations())
	if err != nil {
		return pod, err
	}
	if c := bandwidth.Capability(); c != nil {
		pod.Capabilities["bandwidth"] = c
	}
	if d := rec.config.GetDnsConfig(); d != nil {
		pod.Capabilities["dns"] = map[string]any{"servers": d.GetServers(), "searches": d.GetSearches(), "options": d.GetOptions()}
	}
	return pod, nil
}

// attachCNI connects a sandbox with CNI plugins and records its addresses. It records the network
// configuration before.
func (pn *podNetwork) attachCNI(ctx context.Context, s *sandboxState, n *cni.Network, netns *os.File, inside func() error) error {
	if err := podnet.Loopback(netns, inside); err != nil {
		return err
	}
	if err := s.change(func(rec *sandboxRecord) { rec.CNI = n.Bytes() }); err != nil {
		return err
	}
	pod, err := cniPod(s)
	if err != nil {
		return err
	}
	pn.mu.Lock()
	pn.cniAttached[pod.ID] = true
	pn.mu.Unlock()
	addrs, err := pn.plugins.Add(ctx, n, pod)
	if err != nil {
		return err
	}
	return s.change(func(rec *sandboxRecord) {
		for _, a := range addrs {
			rec.IPs = append(rec.IPs, a.String())
		}
	})
}

// otherCNICaches returns glob patterns of the CNI cache directories of other runtimes on this
// machine: those of other nodes, and the default directory. root is the directory of this one.
func otherCNICaches(root string) []string {
	patterns := []string{libcni.CacheDir}
	for _, data := range layout.DataDirPatterns(filepath.Dir(root)) {
		patterns = append(patterns, filepath.Join(data, filepath.Base(root), "cni"))
	}
	return patterns
}

// detachCNI disconnects a sandbox from its CNI network.
func (pn *podNetwork) detachCNI(ctx context.Context, s *sandboxState) error {
	n, err := cni.Parse(s.get().CNI)
	if err != nil {
		return err
	}
	pod, err := cniPod(s)
	if err != nil {
		return err
	}
	if err := pn.plugins.Del(ctx, n, pod); err != nil {
		return fmt.Errorf("failed to destroy network for sandbox %q: %w", pod.ID, err)
	}
	pn.mu.Lock()
	delete(pn.cniAttached, pod.ID)
	pn.mu.Unlock()
	return nil
}

// reconcileCNI runs CNI GC to release the resources of deleted pods, and CNI CHECK for adopted
// pods, because the previous runtime process may have been killed at any time.
func (pn *podNetwork) reconcileCNI(ctx context.Context) {
	n, err := pn.external()
	if err != nil || n == nil {
		return
	}
	var adopted []string
	for _, s := range pn.inventory.allSandboxes() {
		rec := s.get()
		if rec.Phase != phaseRunning || len(rec.CNI) == 0 {
			continue
		}
		adopted = append(adopted, rec.ID)
		network, err := cni.Parse(rec.CNI)
		var pod cni.Pod
		if err == nil {
			pod, err = cniPod(s)
		}
		if err == nil {
			err = pn.plugins.Check(ctx, network, pod)
		}
		if err != nil && ctx.Err() == nil {
			pn.log.Warn("CNI CHECK of pod network failed, keeping the pod network as it is", "podSandboxID", rec.ID, "err", err)
		}
	}
	alive := func() []string {
		pn.mu.Lock()
		defer pn.mu.Unlock()
		return slices.AppendSeq(slices.Clone(adopted), maps.Keys(pn.cniAttached))
	}
	if err := pn.plugins.GC(ctx, n, alive); err != nil && ctx.Err() == nil {
		pn.log.Warn("CNI garbage collection failed, network attachments of removed pod sandboxes may remain", "err", err)
	}
}
