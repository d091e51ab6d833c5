// Package revision keeps the history of a pod template in ControllerRevisions,
// for DaemonSets and StatefulSets.
package revision

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/controllers/internal/control"
)

// Data is what a revision stores of a template: a strategic merge patch that
// puts it back.
func Data(template *corev1.PodTemplateSpec) ([]byte, error) {
	raw, err := json.Marshal(template)
	if err != nil {
		return nil, err
	}
	var t map[string]any
	if err := json.Unmarshal(raw, &t); err != nil {
		return nil, err
	}
	t["$patch"] = "replace"
	return json.Marshal(map[string]any{"spec": map[string]any{"template": t}})
}

// same compares what two revisions store.
func same(a, b *appsv1.ControllerRevision) bool { return bytes.Equal(a.Data.Raw, b.Data.Raw) }

// Hash is the hash of what a revision stores; collisions, if not nil, change
// it.
func Hash(data []byte, collisions *int32) string {
	h := fnv.New32()
	h.Write(data)
	if collisions != nil {
		h.Write([]byte(fmt.Sprintf("%d", *collisions)))
	}
	return rand.SafeEncodeString(fmt.Sprint(h.Sum32()))
}

// sortOldestFirst orders revisions, the oldest first.
func sortOldestFirst(revs []*appsv1.ControllerRevision) {
	slices.SortFunc(revs, func(a, b *appsv1.ControllerRevision) int {
		if c := cmp.Compare(a.Revision, b.Revision); c != 0 {
			return c
		}
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return cmp.Compare(a.Name, b.Name)
	})
}

// Claimer decides which revisions are an owner's; Claim gives it its Patch.
type Claimer = control.Claimer[*appsv1.ControllerRevision]

// Claim returns the revisions of claimer's owner, the oldest first, adopting and
// releasing what must be. index is that of an informer with
// control.AddOwnerIndex.
func Claim(ctx context.Context, kube kubernetes.Interface, index cache.Indexer, claimer *Claimer) ([]*appsv1.ControllerRevision, error) {
	revs, err := control.Owned[*appsv1.ControllerRevision](index, claimer.Owner, true)
	if err != nil {
		return nil, err
	}
	claimer.Patch = func(ctx context.Context, r *appsv1.ControllerRevision, kind types.PatchType, patch []byte) error {
		_, err := kube.AppsV1().ControllerRevisions(r.Namespace).Patch(ctx, r.Name, kind, patch, metav1.PatchOptions{})
		return err
	}
	revs, err = claimer.Claim(ctx, revs)
	sortOldestFirst(revs)
	return revs, err
}

// New makes, but does not write, a revision of owner.
func New(owner metav1.Object, kind schema.GroupVersionKind, meta map[string]string, data []byte, number int64, name string) *appsv1.ControllerRevision {
	l := make(map[string]string, len(meta))
	maps.Copy(l, meta)
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name:            name,
			Namespace:       owner.GetNamespace(),
			Labels:          l,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)},
		},
		Data:     runtime.RawExtension{Raw: data},
		Revision: number,
	}
}

// ErrCollision says that another revision has the name already.
var ErrCollision = fmt.Errorf("another revision has the same hash")

// Create writes rev, or returns the equal one that is there already.
func Create(ctx context.Context, kube kubernetes.Interface, rev *appsv1.ControllerRevision) (*appsv1.ControllerRevision, error) {
	api := kube.AppsV1().ControllerRevisions(rev.Namespace)
	made, err := api.Create(ctx, rev, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return made, err
	}
	there, err := api.Get(ctx, rev.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if same(there, rev) && metav1.IsControlledBy(there, &metav1.ObjectMeta{UID: rev.OwnerReferences[0].UID}) {
		return there, nil
	}
	return nil, ErrCollision
}

// Renumber gives rev a number.
func Renumber(ctx context.Context, kube kubernetes.Interface, rev *appsv1.ControllerRevision, number int64) (*appsv1.ControllerRevision, error) {
	if rev.Revision == number {
		return rev, nil
	}
	next := rev.DeepCopy()
	next.Revision = number
	return kube.AppsV1().ControllerRevisions(rev.Namespace).Update(ctx, next, metav1.UpdateOptions{})
}

// Prune deletes the oldest of revs that are not live, until limit of those are
// left. revs are sorted.
func Prune(ctx context.Context, kube kubernetes.Interface, revs []*appsv1.ControllerRevision, live func(*appsv1.ControllerRevision) bool, limit int) error {
	var dead []*appsv1.ControllerRevision
	for _, r := range revs {
		if !live(r) {
			dead = append(dead, r)
		}
	}
	for i := range len(dead) - limit {
		err := kube.AppsV1().ControllerRevisions(dead[i].Namespace).Delete(ctx, dead[i].Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// NextNumber is one more than the highest number among revs.
func NextNumber(revs []*appsv1.ControllerRevision) int64 {
	n := int64(0)
	for _, r := range revs {
		n = max(n, r.Revision)
	}
	return n + 1
}
