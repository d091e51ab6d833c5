// Package resourceclaim creates the ResourceClaims that pods request by template, removes the
// reservations of finished pods, and deallocates and deletes unused claims.
//
// https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
package resourceclaim

import (
	"context"
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/pod/podutil"
)

const (
	// claimNameKey is the annotation of a claim with the name of its entry in the pod's spec.
	claimNameKey = "resource.kubernetes.io/pod-claim-name"
	// fieldManager is the field manager of this controller's writes to the status of pods.
	fieldManager = "ResourceClaimController"

	// podKey and claimKey are the prefixes of the keys in the work queue, before the namespace/name of a pod or a
	// claim.
	podKey   = "pod:"
	claimKey = "claim:"

	// byClaim is the name of the index of pods by the claims that they use.
	byClaim = "resourceclaims"
	// byTemplate is the name of the index of pods by the templates of their claims.
	byTemplate = "resourceclaimtemplates"
)

// Controller creates the claims of pods, maintains which pods claims are reserved for, and deallocates and deletes
// claims that no pod uses any more.
type Controller struct {
	*control.Loop
	env       control.Env
	pods      corelisters.PodLister
	index     cache.Indexer
	claims    resourcelisters.ResourceClaimLister
	templates resourcelisters.ResourceClaimTemplateLister
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. It adds indexes to
// the informer of pods. The caller then starts the informers and calls Run.
func New(env control.Env) (*Controller, error) {
	env = env.Defaulted()
	pods := env.Informers.Core().V1().Pods()
	claims := env.Informers.Resource().V1().ResourceClaims()
	templates := env.Informers.Resource().V1().ResourceClaimTemplates()
	c := &Controller{
		env: env, pods: pods.Lister(), index: pods.Informer().GetIndexer(),
		claims: claims.Lister(), templates: templates.Lister(),
	}
	c.Loop = control.NewLoop(env, "resource_claim", c.sync)
	err := pods.Informer().AddIndexers(cache.Indexers{byClaim: claimsOf, byTemplate: templatesOf})
	return c, errors.Join(err,
		c.Watch(pods.Informer(), control.Handlers(c.podChanged, func(old, p *corev1.Pod) {
			if old.UID != p.UID {
				c.podGone(old)
			}
			c.podChanged(p)
		}, c.podGone)),
		c.Watch(claims.Informer(), control.AnyEvent(c.claimChanged)),
		c.Watch(templates.Informer(), control.Handlers(c.templateMade, nil, nil)),
	)
}

// claimsOf returns the keys of a pod's claims. It omits claims whose generated names are not in the pod's status yet.
// It is the function of the index byClaim.
func claimsOf(obj any) ([]string, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, nil
	}
	var keys []string
	for i := range p.Spec.ResourceClaims {
		if name, _, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i]); err == nil && name != nil {
			keys = append(keys, p.Namespace+"/"+*name)
		}
	}
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		keys = append(keys, p.Namespace+"/"+s.ResourceClaimName)
	}
	return keys, nil
}

// templatesOf returns the keys of the templates of a pod's claims. It is the function of the index byTemplate.
func templatesOf(obj any) ([]string, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, nil
	}
	var keys []string
	for _, r := range p.Spec.ResourceClaims {
		if r.ResourceClaimTemplateName != nil {
			keys = append(keys, p.Namespace+"/"+*r.ResourceClaimTemplateName)
		}
	}
	return keys, nil
}

// podChanged enqueues a pod that has resource claims. If the pod does not use the claims any more, it enqueues the
// claims instead.
func (c *Controller) podChanged(p *corev1.Pod) {
	if len(p.Spec.ResourceClaims) == 0 && p.Status.ExtendedResourceClaimStatus == nil {
		return
	}
	if isDone(p) {
		c.podGone(p)
		return
	}
	c.Add(podKey + p.Namespace + "/" + p.Name)
}

// podGone enqueues the claims of a pod that was deleted or does not use them any more.
func (c *Controller) podGone(p *corev1.Pod) {
	keys, _ := claimsOf(p)
	for _, k := range keys {
		c.Add(claimKey + k)
	}
}

// claimChanged enqueues a claim, the pods that use it, and the pod that it was created for.
func (c *Controller) claimChanged(claim *resourcev1.ResourceClaim) {
	key := claim.Namespace + "/" + claim.Name
	c.Add(claimKey + key)
	c.addPods(byClaim, key)
	// The claim may have been deleted, or its name may be missing in the pod's status.
	if owner := metav1.GetControllerOf(claim); owner != nil && owner.Kind == "Pod" {
		c.Add(podKey + claim.Namespace + "/" + owner.Name)
	}
}

// templateMade enqueues the pods whose claims are created from t, because they may have been waiting for it.
func (c *Controller) templateMade(t *resourcev1.ResourceClaimTemplate) {
	c.addPods(byTemplate, t.Namespace+"/"+t.Name)
}

// addPods enqueues the pods that the index with this name lists under key.
func (c *Controller) addPods(index, key string) {
	objs, err := c.index.ByIndex(index, key)
	if err != nil {
		return
	}
	for _, o := range objs {
		if p, ok := o.(*corev1.Pod); ok {
			c.Add(podKey + p.Namespace + "/" + p.Name)
		}
	}
}

// isDone reports whether a pod does not use its devices any more: it has terminated, or was deleted before it had a
// node.
func isDone(p *corev1.Pod) bool {
	return podutil.Terminal(p) || p.DeletionTimestamp != nil && p.Spec.NodeName == ""
}

// sync calls syncPod or syncClaim, depending on the prefix of the key.
func (c *Controller) sync(ctx context.Context, key string) error {
	kind, object, _ := strings.Cut(key, ":")
	namespace, name := control.SplitKey(object)
	if kind+":" == podKey {
		return c.syncPod(ctx, namespace, name)
	}
	return c.syncClaim(ctx, namespace, name)
}

// syncClaim removes the reservations of finished pods from a claim. If none remain, it deallocates a claim that the
// scheduler allocated, and deletes a claim that was created for a finished pod.
func (c *Controller) syncClaim(ctx context.Context, namespace, name string) error {
	claim, err := c.claims.ResourceClaims(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	var valid []resourcev1.ResourceClaimConsumerReference
	for _, r := range claim.Status.ReservedFor {
		keep := true
		if r.APIGroup == "" && r.Resource == "pods" {
			if keep, err = c.inUse(ctx, namespace, r.Name, string(r.UID)); err != nil {
				return err
			}
		}
		if keep {
			valid = append(valid, r)
		}
	}
	// Deallocate only claims with the scheduler's finalizer, because the scheduler allocated these.
	guarded := false
	for _, f := range claim.Finalizers {
		guarded = guarded || f == resourcev1.Finalizer
	}
	free := guarded && len(valid) == 0 && claim.Status.Allocation != nil && (len(claim.Status.ReservedFor) > 0 || claim.DeletionTimestamp != nil)
	if len(valid) < len(claim.Status.ReservedFor) || free {
		next := claim.DeepCopy()
		next.Status.ReservedFor = valid
		if free {
			next.Status.Allocation = nil
		}
		if claim, err = c.env.Kube.ResourceV1().ResourceClaims(namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil {
			return ignoreGone(err)
		}
	}
	if guarded && len(valid) == 0 && claim.Status.Allocation == nil && (free || claim.DeletionTimestamp != nil) {
		next := claim.DeepCopy()
		next.Finalizers = nil
		for _, f := range claim.Finalizers {
			if f != resourcev1.Finalizer {
				next.Finalizers = append(next.Finalizers, f)
			}
		}
		if claim, err = c.env.Kube.ResourceV1().ResourceClaims(namespace).Update(ctx, next, metav1.UpdateOptions{}); err != nil {
			return ignoreGone(err)
		}
	}
	if len(valid) > 0 || claim.DeletionTimestamp != nil {
		return nil
	}
	return c.deleteOrphan(ctx, claim)
}

// ignoreGone returns err, or nil if err means that the object does not exist.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// inUse reports whether the pod with the name and UID exists and is not done. If the cache does not contain it, inUse
// checks with the API server.
func (c *Controller) inUse(ctx context.Context, namespace, name, uid string) (bool, error) {
	p, err := c.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) || err == nil && string(p.UID) != uid {
		// The scheduler may have reserved the claim for a pod that the cache does not contain yet.
		p, err = c.env.Kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
	}
	if err != nil {
		return false, err
	}
	return string(p.UID) == uid && !isDone(p), nil
}

// deleteOrphan deletes a claim that was created for a pod from a template, if the pod is done.
func (c *Controller) deleteOrphan(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	owner := metav1.GetControllerOf(claim)
	if owner == nil || owner.Kind != "Pod" || owner.APIVersion != "v1" {
		return nil
	}
	used, err := c.inUse(ctx, claim.Namespace, owner.Name, string(owner.UID))
	if err != nil || used {
		return err
	}
	err = c.env.Kube.ResourceV1().ResourceClaims(claim.Namespace).Delete(ctx, claim.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(claim.UID))})
	if apierrors.IsConflict(err) {
		return nil
	}
	return ignoreGone(err)
}

// findOwned returns the claim that was created for an entry of p, from the cache, even if the pod's status does not
// contain its name. entry is the entry's name. It returns nil if there is no such claim.
func (c *Controller) findOwned(p *corev1.Pod, entry string) (*resourcev1.ResourceClaim, error) {
	all, err := c.claims.ResourceClaims(p.Namespace).List(labels.Everything())
	if err != nil {
		return nil, err
	}
	for _, claim := range all {
		if metav1.IsControlledBy(claim, p) && claim.Annotations[claimNameKey] == entry && claim.DeletionTimestamp == nil {
			return claim, nil
		}
	}
	return nil, nil
}
