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

// runtimeSays is what the runtime said last.
type runtimeSays struct {
	asked            bool
	down             string
	runtimeOK, netOK bool
	netText, runText string
	name, version    string
	handlers         []v1.NodeRuntimeHandler
	features         *v1.NodeFeatures
}

// NetworkProblem tells why pods cannot be connected now, in upstream's words;
// empty when they can, or when that is not known yet.
func (k *Keeper) NetworkProblem() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.runtime.asked || k.runtime.down != "" || k.runtime.netOK {
		return ""
	}
	return "container runtime network not ready: " + k.runtime.netText
}

// downAfter is how long a runtime may keep silent before it counts as one that is
// down, as upstream's.
const downAfter = 30 * time.Second

// askRuntime asks the runtime how it is.
func (k *Keeper) askRuntime(ctx context.Context) {
	ask, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	look, cancelLook := context.WithTimeout(ctx, downAfter)
	defer cancelLook()
	says := runtimeSays{asked: true}
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

// tellRuntime tells the runtime the node's pod addresses, once they are known
// and whenever it has restarted.
func (k *Keeper) tellRuntime(ctx context.Context) error {
	k.mu.Lock()
	cidrs := k.cfg.PodCIDR
	if k.node != nil {
		if len(k.node.Spec.PodCIDRs) > 0 {
			cidrs = strings.Join(k.node.Spec.PodCIDRs, ",")
		} else if k.node.Spec.PodCIDR != "" {
			cidrs = k.node.Spec.PodCIDR
		}
	}
	told := k.cidrs
	down := k.runtime.down != ""
	if down {
		// It may come back without memory of it.
		k.cidrs = ""
	}
	k.mu.Unlock()
	if cidrs == "" || cidrs == told || down {
		return nil
	}
	_, err := k.cfg.CRI.Runtime.UpdateRuntimeConfig(ctx, &runtimeapi.UpdateRuntimeConfigRequest{
		RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: cidrs}},
	})
	if err != nil {
		return fmt.Errorf("telling the runtime the pods' addresses: %w", err)
	}
	k.mu.Lock()
	k.cidrs = cidrs
	k.mu.Unlock()
	k.askRuntime(ctx)
	return nil
}

func (k *Keeper) isReady() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.runtime
	return r.down == "" && r.runtimeOK && r.netOK
}
