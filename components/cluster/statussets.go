package cluster

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"hyperkube/components/cluster/addons"
	"hyperkube/components/cluster/applyset"
	"hyperkube/components/cluster/manifestdir"
)

// checkSets adds the last errors of add-ons and of files in the directory of manifests to the problems of the report.
func (r *report) checkSets(ctx context.Context, kube kubernetes.Interface) {
	for _, kind := range []struct {
		label   string
		problem func(data map[string]string) string
	}{{addons.AddonLabel, addons.Problem}, {manifestdir.Label, manifestdir.Problem}} {
		sets, err := kube.CoreV1().ConfigMaps(applyset.ParentNamespace).List(ctx, metav1.ListOptions{LabelSelector: kind.label})
		if err != nil {
			r.addProblem("listing the results of add-ons and manifests: %v", err)
			return
		}
		for i := range sets.Items {
			text := kind.problem(sets.Items[i].Data)
			if text == "" {
				continue
			}
			if name := sets.Items[i].Labels[addons.AddonLabel]; name != "" {
				text = "add-on " + name + ": " + text
			}
			r.addProblem("%s", text)
		}
	}
}
