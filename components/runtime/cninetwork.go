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

// errCNINetwork is the value of podNetwork.err while CNI plugins connect pods, so the built-in network has not been set
// up.
var errCNINetwork = errors.New("pods are connected by CNI plugins")

// external returns the CNI network that connects new pods. It returns nil if the CNI configuration directory contains
// no configuration, in which case the built-in network connects them, and an error if all configurations are invalid.
func (pn *podNetwork) external() (*cni.Network, error) { return pn.plugins.Configured() }

// cniPod returns the parameters of a sandbox for calls of CNI plugins. The network namespace is empty if the sandbox's
// process has exited. It returns an error for invalid bandwidth annotations.
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

// attachCNI calls the CNI plugins of n to connect a new sandbox, and records the addresses that they assign. It records
// the network configuration first, so that a runtime process that is started after a crash can disconnect the sandbox.
// netns is the sandbox's network namespace. inside is called in that namespace and sets the hostname and sysctls.
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

// otherCNICaches returns glob patterns of the CNI cache directories of other runtimes on this machine: the runtimes of
// other nodes of this project, and libcni's default directory, which other container runtimes use. root is Config.Root
// of this runtime. CNI GC must not release the attachments in these caches.
func otherCNICaches(root string) []string {
	patterns := []string{libcni.CacheDir}
	for _, data := range layout.DataDirPatterns(filepath.Dir(root)) {
		patterns = append(patterns, filepath.Join(data, filepath.Base(root), "cni"))
	}
	return patterns
}

// detachCNI calls the CNI plugins that have connected a sandbox to disconnect it. It uses the network configuration in
// the sandbox's record, because the current configuration may be another one.
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

// reconcileCNI is called once after start. It does nothing unless a valid CNI configuration exists. The
// previous runtime process may have been killed at any time, so it runs CNI CHECK for each adopted pod that CNI
// plugins have connected, and CNI GC to release the network attachments of deleted pods. Failures are only
// logged.
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
			pn.log.Warn("CNI CHECK of running pod failed at the start of the container runtime; nothing is changed, no retry: delete the pod if its network does not work", "podSandboxID", rec.ID, "err", err)
		}
	}
	alive := func() []string {
		pn.mu.Lock()
		defer pn.mu.Unlock()
		return slices.AppendSeq(slices.Clone(adopted), maps.Keys(pn.cniAttached))
	}
	if err := pn.plugins.GC(ctx, n, alive); err != nil && ctx.Err() == nil {
		pn.log.Warn("CNI GC failed; addresses and other network resources of removed pods may stay allocated, retrying at the next start of the container runtime", "err", err)
	}
}
