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
	"hyperkube/internal/layout"
	"hyperkube/internal/podnet"
)

// errExternal says that the network of this project is not set up, because
// plugins of others connect pods.
var errExternal = errors.New("pods are connected by network plugins")

// external is the network of the plugins that connect new pods now, nil if this
// project does.
func (r *Runtime) external() (*cni.Network, error) { return r.plugins.Configured() }

// ownNetwork tells what keeps this project's network from connecting pods, after
// having set it up if plugins had been there until now.
func (r *Runtime) ownNetwork(ctx context.Context) error {
	r.mu.Lock()
	err := r.networkErr
	r.mu.Unlock()
	if errors.Is(err, errExternal) {
		r.setupNetwork(ctx)
		r.mu.Lock()
		err = r.networkErr
		r.mu.Unlock()
	}
	return err
}

// cniPod is a sandbox as plugins see it.
func (r *Runtime) cniPod(s *sandboxState) (cni.Pod, error) {
	rec := s.get()
	m := rec.config.GetMetadata()
	pod := cni.Pod{ID: rec.ID, Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUid(), Capabilities: map[string]any{}}
	if s.handle != nil {
		path := fmt.Sprintf("/proc/%d/ns/net", s.handle.PID())
		// Alive afterwards, it is the one that was looked at: else its number may be
		// another's by now, whose network is not to be touched.
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

// plugIn has the plugins connect a sandbox, which is recorded before, and
// records its addresses.
func (r *Runtime) plugIn(ctx context.Context, s *sandboxState, n *cni.Network, netns *os.File, inside func() error) error {
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
	r.plugged[pod.ID] = true
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

// othersPlugins are the folders in which others keep what plugins gave to their
// pods: other nodes of the machine, and runtimes that leave that to the usual place.
func (r *Runtime) othersPlugins() []string {
	patterns := []string{libcni.CacheDir}
	for _, data := range layout.OnMachine(filepath.Dir(r.cfg.Root)) {
		patterns = append(patterns, filepath.Join(data, filepath.Base(r.cfg.Root), "cni"))
	}
	return patterns
}

// unplug takes a sandbox back from the plugins that have connected it.
func (r *Runtime) unplug(ctx context.Context, s *sandboxState) error {
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
	delete(r.plugged, pod.ID)
	r.mu.Unlock()
	return nil
}

// lookAtPlugins has plugins take back what they gave to pods that are gone, and
// looks whether those that are there are still connected: who had this process's
// place before may have ended at any instant.
func (r *Runtime) lookAtPlugins(ctx context.Context) {
	n, err := r.external()
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
		mine, err := cni.Parse(rec.CNI)
		var pod cni.Pod
		if err == nil {
			pod, err = r.cniPod(s)
		}
		if err == nil {
			err = r.plugins.Check(ctx, mine, pod)
		}
		if err != nil && ctx.Err() == nil {
			r.log.Warn("a pod is not connected any more as it was", "sandbox", rec.ID, "error", err)
		}
	}
	alive := func() []string {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.AppendSeq(slices.Clone(adopted), maps.Keys(r.plugged))
	}
	if err := r.plugins.Collect(ctx, n, alive); err != nil && ctx.Err() == nil {
		r.log.Warn("network plugins did not take back what they gave to pods that are gone", "error", err)
	}
}

// networkCondition is NetworkReady. Words are containerd's, which people search
// for.
func (r *Runtime) networkCondition(ctx context.Context) *runtimeapi.RuntimeCondition {
	n, err := r.external()
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
		if errors.Is(err, errExternal) {
			err = nil // it is set up for the first pod
		}
	}
	c := &runtimeapi.RuntimeCondition{Type: "NetworkReady", Status: err == nil}
	if err != nil {
		c.Reason, c.Message = "NetworkPluginNotReady", "Network plugin returns error: "+err.Error()
	}
	return c
}
