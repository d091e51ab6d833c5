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
	"time"

	"github.com/containernetworking/cni/libcni"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/cni"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/pod/podnet"
)

// errCNINetwork means that the built-in network is not set up, because CNI plugins connect pods.
var errCNINetwork = errors.New("pods are connected by CNI plugins")

// cniNetwork returns the CNI network that connects new pods, or nil if the built-in network does.
func (r *Runtime) cniNetwork() (*cni.Network, error) { return r.plugins.Configured() }

// ensureBuiltinNetwork returns the error that prevents the built-in network from connecting pods. It sets up
// the network if CNI plugins were used until now.
func (r *Runtime) ensureBuiltinNetwork(ctx context.Context) error {
	r.mu.Lock()
	err := r.networkErr
	r.mu.Unlock()
	if errors.Is(err, errCNINetwork) {
		r.setupNetwork(ctx)
		r.mu.Lock()
		err = r.networkErr
		r.mu.Unlock()
	}
	return err
}

// cniPod returns the parameters of a sandbox for CNI plugins.
func (r *Runtime) cniPod(s *sandboxState) (cni.Pod, error) {
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
func (r *Runtime) attachCNI(ctx context.Context, s *sandboxState, n *cni.Network, netns *os.File, inside func() error) error {
	if err := podnet.Loopback(netns, inside); err != nil {
		return err
	}
	if err := r.changeSandbox(s, func(rec *sandboxRecord) { rec.CNI = n.Bytes() }); err != nil {
		return err
	}
	pod, err := r.cniPod(s)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.cniAttached[pod.ID] = true
	r.mu.Unlock()
	addrs, err := r.plugins.Add(ctx, n, pod)
	if err != nil {
		return err
	}
	return r.changeSandbox(s, func(rec *sandboxRecord) {
		for _, a := range addrs {
			rec.IPs = append(rec.IPs, a.String())
		}
	})
}

// otherCNICaches returns glob patterns of the CNI cache directories of other runtimes on this
// machine: those of other nodes, and the default directory.
func (r *Runtime) otherCNICaches() []string {
	patterns := []string{libcni.CacheDir}
	for _, data := range layout.DataDirPatterns(filepath.Dir(r.cfg.Root)) {
		patterns = append(patterns, filepath.Join(data, filepath.Base(r.cfg.Root), "cni"))
	}
	return patterns
}

// detachCNI disconnects a sandbox from its CNI network.
func (r *Runtime) detachCNI(ctx context.Context, s *sandboxState) error {
	n, err := cni.Parse(s.get().CNI)
	if err != nil {
		return err
	}
	pod, err := r.cniPod(s)
	if err != nil {
		return err
	}
	if err := r.plugins.Del(ctx, n, pod); err != nil {
		return fmt.Errorf("failed to destroy network for sandbox %q: %w", pod.ID, err)
	}
	r.mu.Lock()
	delete(r.cniAttached, pod.ID)
	r.mu.Unlock()
	return nil
}

// reconcileCNI runs CNI GC to release the resources of deleted pods, and CNI CHECK for adopted
// pods, because the previous runtime process may have been killed at any time.
func (r *Runtime) reconcileCNI(ctx context.Context) {
	n, err := r.cniNetwork()
	if err != nil || n == nil {
		return
	}
	r.mu.Lock()
	var all []*sandboxState
	for _, s := range r.sandboxes {
		all = append(all, s)
	}
	r.mu.Unlock()
	var adopted []string
	for _, s := range all {
		rec := s.get()
		if rec.Phase != phaseRunning || len(rec.CNI) == 0 {
			continue
		}
		adopted = append(adopted, rec.ID)
		network, err := cni.Parse(rec.CNI)
		var pod cni.Pod
		if err == nil {
			pod, err = r.cniPod(s)
		}
		if err == nil {
			err = r.plugins.Check(ctx, network, pod)
		}
		if err != nil && ctx.Err() == nil {
			r.log.Warn("cni check of pod network failed", "sandbox", rec.ID, "err", err)
		}
	}
	alive := func() []string {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.AppendSeq(slices.Clone(adopted), maps.Keys(r.cniAttached))
	}
	if err := r.plugins.GC(ctx, n, alive); err != nil && ctx.Err() == nil {
		r.log.Warn("cni garbage collection failed", "err", err)
	}
}

// networkCondition returns the NetworkReady condition. Its messages are those of containerd, which
// users search for.
func (r *Runtime) networkCondition(ctx context.Context) *runtimeapi.RuntimeCondition {
	n, err := r.cniNetwork()
	switch {
	case n != nil:
		ask, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		err = r.plugins.Status(ask, n)
	case err != nil:
		err = fmt.Errorf("cni plugin not initialized: %w", err)
	default:
		r.mu.Lock()
		err = r.networkErr
		r.mu.Unlock()
		if errors.Is(err, errCNINetwork) {
			err = nil // it is set up when the first pod is created
		}
	}
	c := &runtimeapi.RuntimeCondition{Type: "NetworkReady", Status: err == nil}
	if err != nil {
		c.Reason, c.Message = "NetworkPluginNotReady", "Network plugin returns error: "+err.Error()
	}
	return c
}
