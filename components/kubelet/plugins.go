package kubelet

import (
	"context"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"hyperkube/components/kubelet/pluginwatch"
	"hyperkube/components/kubelet/volume"
	"hyperkube/components/kubelet/volume/csi"
)

// newCSI makes what uses volumes of CSI drivers. What it is given is not called
// before the parts are together.
func (k *Kubelet) newCSI(events record.EventRecorder) (*csi.Plugin, error) {
	return csi.New(csi.Config{
		Root: k.cfg.Layout.Kubelet, NodeName: k.cfg.NodeName, Kube: k.kube, Tokens: k.tokens, Events: events, Log: k.log, Metrics: k.metrics,
		Node:      func() *v1.Node { return k.keeper.Node() },
		FileLabel: volume.FileLabels(),
		InUse: func() {
			if k.keeper != nil {
				k.keeper.Changed()
			}
		},
		Registered: func() { k.manager.RetryVolumes() },
	})
}

// newPlugins makes what takes in the plugins that register with the kubelet.
func (k *Kubelet) newPlugins() *pluginwatch.Watcher {
	return &pluginwatch.Watcher{
		Dir: filepath.Join(k.cfg.Layout.Kubelet, "plugins_registry"), Alias: k.cfg.Layout.KubeletAlias(), Log: k.log,
		Handlers: map[string]pluginwatch.Handler{"CSIPlugin": k.csi, "DRAPlugin": k.claims},
	}
}

// Bounds of the time between attempts to take back what pods had that went while
// the kubelet was away: their drivers may not be there yet.
const (
	reconcileFirst = time.Second
	reconcileMost  = 5 * time.Minute
)

// reconcileClaims has the devices of pods that are not there any more taken back.
// All that are there must be known.
func (k *Kubelet) reconcileClaims(ctx context.Context) {
	there := func(uid types.UID) bool {
		select {
		case <-k.manager.Cleaned(uid):
			return false
		default:
			return true
		}
	}
	for pause := reconcileFirst; ; pause = min(2*pause, reconcileMost) {
		err := k.claims.Reconcile(ctx, there)
		if err == nil || ctx.Err() != nil {
			return
		}
		k.log.Warn("taking back devices of pods that have gone failed, trying again", "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}
