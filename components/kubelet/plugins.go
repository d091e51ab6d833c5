package kubelet

import (
	"context"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"hyperkube/components/kubelet/pluginwatch"
	"hyperkube/components/kubelet/volume/csi"
)

// newCSI makes what uses volumes of CSI drivers. What it is given is not called
// before the parts are together.
func (k *Kubelet) newCSI(events record.EventRecorder) (*csi.Plugin, error) {
	return csi.New(csi.Config{
		Root: k.cfg.Layout.Kubelet, NodeName: k.cfg.NodeName, Kube: k.kube, Tokens: k.tokens, Events: events, Log: k.log,
		Node: func() *v1.Node { return k.keeper.Node() },
		InUse: func() {
			if k.keeper != nil {
				k.keeper.Changed()
			}
		},
		Registered: func() { k.manager.RetryVolumes() },
	})
}

// followPlugins takes in the plugins that register with the kubelet.
func (k *Kubelet) followPlugins(ctx context.Context) error {
	w := &pluginwatch.Watcher{
		Dir: filepath.Join(k.cfg.Layout.Kubelet, "plugins_registry"), Log: k.log,
		Handlers: map[string]pluginwatch.Handler{"CSIPlugin": k.csi},
	}
	return w.Run(ctx)
}
