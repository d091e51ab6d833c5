package control

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// byNode is the name of the pod index that AddNodeIndex adds.
const byNode = "spec.nodeName"

// AddNodeIndex adds an index by node name to the pod informer, unless it already has the index. It returns an error if
// the informer was stopped. It is not safe for concurrent use.
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

// PodsOnNode returns the pods that are bound to a node, including terminated ones. index is the indexer of an informer
// to which AddNodeIndex has added the index.
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
