// Package revision stores the history of a pod template in ControllerRevisions, for DaemonSets and
// StatefulSets.
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

// Data returns the data of a ControllerRevision for a pod template: a strategic merge patch that restores the template
// in its owner.
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

// same reports whether two revisions have the same data.
func same(a, b *appsv1.ControllerRevision) bool { return bytes.Equal(a.Data.Raw, b.Data.Raw) }

// Hash returns the hash for the name of a revision with this data. collisions is the owner's collision count, or nil.
func Hash(data []byte, collisions *int32) string {
	h := fnv.New32()
	h.Write(data)
	if collisions != nil {
		h.Write([]byte(fmt.Sprintf("%d", *collisions)))
	}
	return rand.SafeEncodeString(fmt.Sprint(h.Sum32()))
}

// sortOldestFirst sorts revisions, the oldest first.
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

// Claimer determines which revisions an owner controls, see control.Claimer. Claim sets its Patch field.
type Claimer = control.Claimer[*appsv1.ControllerRevision]

// Claim adopts and releases revisions, and returns those that claimer's owner controls, the oldest first. index is the
// indexer of a ControllerRevision informer to which control.AddOwnerIndex has added the index.
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

// New returns a ControllerRevision that owner controls, without creating it in the API server. kind is the owner's
// kind, meta are the labels, which are copied, data is the result of Data, number the position in the history, and
// name the object name.
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

// ErrCollision is returned by Create if another revision has the name. The caller increments the owner's collision
// count, which changes the hash in the name, and retries.
var ErrCollision = fmt.Errorf("another revision has the same hash")

// Create creates rev in the API server. If a revision with the same name, data and owner exists, it returns that one.
// If a different revision has the name, it returns ErrCollision.
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

// Renumber changes the number of a revision, because its template is current again. It sends no request if the
// revision already has that number.
func Renumber(ctx context.Context, kube kubernetes.Interface, rev *appsv1.ControllerRevision, number int64) (*appsv1.ControllerRevision, error) {
	if rev.Revision == number {
		return rev, nil
	}
	next := rev.DeepCopy()
	next.Revision = number
	return kube.AppsV1().ControllerRevisions(rev.Namespace).Update(ctx, next, metav1.UpdateOptions{})
}

// Prune deletes the oldest revisions that are not in use, except for the newest limit ones of these. live reports
// whether a revision is in use. revs must be sorted with the oldest first.
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

// NextNumber returns the number for a new revision: the highest number among revs plus one.
func NextNumber(revs []*appsv1.ControllerRevision) int64 {
	n := int64(0)
	for _, r := range revs {
		n = max(n, r.Revision)
	}
	return n + 1
}
