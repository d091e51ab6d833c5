package up

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"

	"hyperkube/components/cluster/addons"
	"hyperkube/components/cluster/applyset"
	"hyperkube/components/cluster/manifestdir"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/base/version"
	"hyperkube/manifests"
)

// objectOptions selects the objects that this process applies to the cluster.
type objectOptions struct {
	// enable are the add-ons that this start enables.
	enable []string
	// manifests is the directory of manifests. If it is "", that is the directory manifests in the data directory,
	// which is created.
	manifests string
}

// startManifests starts applying the manifests of the directory, now and when they change.
func (c *clusterRun) startManifests(ctx context.Context, group *lifecycle.Group, p *parts) error {
	applier, err := manifestdir.New(manifestdir.Config{
		Dir: cmp.Or(c.objects.manifests, filepath.Join(c.layout.Data, "manifests")), CreateDir: c.objects.manifests == "",
		Client: &applyset.Client{Dynamic: p.admin.Dynamic, Mapper: p.mapper, FieldManager: manifestdir.FieldManager},
		Kube:   p.admin.Kube, Log: c.log.With("component", "manifests"),
	})
	if err != nil {
		return err
	}
	group.Start(context.WithoutCancel(ctx), "manifests", applier)
	return nil
}

// startAddons starts applying the objects of the enabled add-ons, now and when the settings of add-ons change.
// FormerPods is set for clusters whose saved configuration lists the add-on metrics, because earlier versions ran it as
// pods.
func (c *clusterRun) startAddons(ctx context.Context, group *lifecycle.Group, p *parts) (*addons.Manager, error) {
	manager, err := addons.NewManager(addons.Config{
		Reconciler: &addons.Reconciler{
			Client: &applyset.Client{Dynamic: p.admin.Dynamic, Mapper: p.mapper, FieldManager: addons.FieldManager},
			Values: manifests.Values{
				Image: version.Image(), DNSAddress: c.cluster.DNSAddress, Domain: c.cluster.Domain,
				NodeDNSDir: c.layout.NodeDNS(), InProcess: true,
			},
			FormerPods: slices.Contains(c.cluster.Addons, "metrics"),
		},
		Kube: p.admin.Kube, ConfigMaps: p.shared.Informers.Core().V1().ConfigMaps().Informer(), Enable: c.objects.enable, Saved: c.cluster.Addons,
		Log: c.log.With("component", "add-ons"),
	})
	if err != nil {
		return nil, err
	}
	group.Start(context.WithoutCancel(ctx), "add-ons", manager)
	return manager, nil
}
