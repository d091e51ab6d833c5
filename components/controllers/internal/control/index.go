package control

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// byNode is the name of the index that AddNodeIndex adds.
const byNode = "spec.nodeName"

// AddNodeIndex indexes pods by their node, unless the informer already has the index. It is not
// safe for concurrent use.
func AddNodeIndex(pods cache.SharedIndexInformer) error {
	if _, ok := pods.GetIndexer().GetIndexers()[byNode]; ok {
		return nil
	}
	return pods.AddIndexers(cache.Indexers{byNode: func(obj any) ([]string, error) {
		p, ok := obj.(*corev1.Pod)
		if !ok || p.Spec.NodeName == "" {
			return nil, nil
		}
		return []string{p.Spec.NodeName}, nil
	}})
}

// PodsOnNode returns the pods bound to a node. The index must have been added by AddNodeIndex.
func PodsOnNode(index cache.Indexer, node string) ([]*corev1.Pod, error) {
	objs, err := index.ByIndex(byNode, node)
	if err != nil {
		return nil, err
	}
	pods := make([]*corev1.Pod, 0, len(objs))
	for _, o := range objs {
		if p, ok := o.(*corev1.Pod); ok {
			pods = append(pods, p)
		}
	}
	return pods, nil
}
