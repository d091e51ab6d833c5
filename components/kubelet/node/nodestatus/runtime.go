package nodestatus

import (
	"context"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"google.golang.org/grpc"

	"hyperkube/components/kubelet/cri"
)

// runtimeStatus is the status of the container runtime as last read. down is why the runtime did not respond,
// or "". runText and netText describe the conditions RuntimeReady and NetworkReady.
type runtimeStatus struct {
	known            bool
	down             string
	runtimeOK, netOK bool
	netText, runText string
	name, version    string
	handlers         []v1.NodeRuntimeHandler
	features         *v1.NodeFeatures
}

// NetworkProblem returns upstream's message why pods cannot be connected to the pod network, or "" if they
// can or if that is not known yet. If there is a problem, it requests an update of the status, because the
// problem may have been resolved since.
func (k *Manager) NetworkProblem() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.runtime.known || k.runtime.down != "" || k.runtime.netOK {
		return ""
	}
	k.Changed()
	return "container runtime network not ready: " + k.runtime.netText
}

// runtimeDownTimeout is how long the container runtime may not respond to a status request before it counts
// as down, as in upstream.
const runtimeDownTimeout = 30 * time.Second

// getRuntimeStatus reads the status of the container runtime and stores it in k.runtime. A runtime that does
// not respond is stored as down.
func (k *Manager) getRuntimeStatus(ctx context.Context) {
	ask, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	look, cancelLook := context.WithTimeout(ctx, runtimeDownTimeout)
	defer cancelLook()
	says := runtimeStatus{known: true}
	k.mu.Lock()
	says.name, says.version = k.runtime.name, k.runtime.version
	k.mu.Unlock()
	wait := grpc.WaitForReady(says.name == "")
	if says.name == "" {
		if v, err := k.cfg.CRI.Runtime.Version(ask, &runtimeapi.VersionRequest{}, wait); err == nil {
			says.name, says.version = v.RuntimeName, v.RuntimeVersion
		}
	}
	resp, err := k.cfg.CRI.Runtime.Status(look, &runtimeapi.StatusRequest{})
	if err != nil {
		says.down = cri.Message(err)
	} else {
		for _, c := range resp.GetStatus().GetConditions() {
			text := fmt.Sprintf("%s=%v reason:%s message:%s", c.Type, c.Status, c.Reason, c.Message)
			switch c.Type {
			case "RuntimeReady":
				says.runtimeOK, says.runText = c.Status, text
			case "NetworkReady":
				says.netOK, says.netText = c.Status, text
			}
		}
		for _, h := range resp.RuntimeHandlers {
			recursive, users := h.GetFeatures().GetRecursiveReadOnlyMounts(), h.GetFeatures().GetUserNamespaces()
			says.handlers = append(says.handlers, v1.NodeRuntimeHandler{
				Name:     h.Name,
				Features: &v1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &recursive, UserNamespaces: &users},
			})
		}
		if f := resp.Features; f != nil {
			policy := f.SupplementalGroupsPolicy
			says.features = &v1.NodeFeatures{SupplementalGroupsPolicy: &policy}
		}
	}
	k.mu.Lock()
	k.runtime = says
	k.mu.Unlock()
}

// setPodCIDRs passes the node's pod CIDRs to the container runtime when they are known, and again after the
// runtime was down, because it may have lost them. Until the Node has a pod CIDR, it passes the configured
// one.
func (k *Manager) setPodCIDRs(ctx context.Context) error {
	cidrs := k.cfg.PodCIDR
	if node := k.Node(); node != nil {
		if len(node.Spec.PodCIDRs) > 0 {
			cidrs = strings.Join(node.Spec.PodCIDRs, ",")
		} else if node.Spec.PodCIDR != "" {
			cidrs = node.Spec.PodCIDR
		}
	}
	k.mu.Lock()
	applied := k.cidrs
	down := k.runtime.down != ""
	if down {
		// A restarted runtime may have lost them.
		k.cidrs = ""
	}
	k.mu.Unlock()
	if cidrs == "" || cidrs == applied || down {
		return nil
	}
	_, err := k.cfg.CRI.Runtime.UpdateRuntimeConfig(ctx, &runtimeapi.UpdateRuntimeConfigRequest{
		RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: cidrs}},
	})
	if err != nil {
		return fmt.Errorf("configuring the runtime's pod CIDRs: %w", err)
	}
	k.mu.Lock()
	k.cidrs = cidrs
	k.mu.Unlock()
	k.getRuntimeStatus(ctx)
	return nil
}

// isReady reports whether the container runtime and its network are ready.
func (k *Manager) isReady() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.runtime
	return r.down == "" && r.runtimeOK && r.netOK
}
