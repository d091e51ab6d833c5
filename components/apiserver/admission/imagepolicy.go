package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	imagepolicy "k8s.io/api/imagepolicy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

const (
	// imageAuditPrefix is the prefix of the audit annotations.
	imageAuditPrefix = "imagepolicywebhook.image-policy.k8s.io/"
	// imageFailedOpen is the annotation of pods that were admitted without a review, because the webhook did not
	// respond and defaultAllow is set.
	imageFailedOpen = "alpha.image-policy.k8s.io/failed-open"
)

// imagePolicy is the plugin ImagePolicyWebhook. It requests from an external webhook whether the images of a pod are
// allowed.
//
// https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#imagepolicywebhook
type imagePolicy struct {
	operations
	hook *webhook.GenericWebhook
	// cache caches ImageReviewStatuses by the JSON of the review's spec.
	cache             *utilcache.LRUExpireCache
	allowTTL, denyTTL time.Duration
	// failOpen admits pods if the webhook does not respond or responds with an error.
	failOpen bool
}

// imagePolicyConfig is the configuration of the plugin ImagePolicyWebhook. For the numbers, 0 means the default and
// -1 disables the cache or the back-off.
type imagePolicyConfig struct {
	KubeConfigFile string `json:"kubeConfigFile"`
	// AllowTTL and DenyTTL are the cache lifetimes in seconds.
	AllowTTL int64 `json:"allowTTL"`
	DenyTTL  int64 `json:"denyTTL"`
	// RetryBackoff is the delay before the first retry of a call, in milliseconds.
	RetryBackoff int64 `json:"retryBackoff"`
	// DefaultAllow admits pods if the webhook does not respond.
	DefaultAllow bool `json:"defaultAllow"`
}

// newImagePolicy creates the plugin ImagePolicyWebhook from its configuration file. It returns an error if there is
// no file or it is invalid.
func newImagePolicy(cfg *Config) (admission.Interface, error) {
	data := cfg.Files["ImagePolicyWebhook"]
	if len(data) == 0 {
		return nil, errors.New("no config specified")
	}
	var file struct {
		ImagePolicy imagePolicyConfig `json:"imagePolicy"`
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		return nil, err
	}
	c := file.ImagePolicy
	backoff, err := durationWithin(c.RetryBackoff, time.Millisecond, 1, 5*time.Minute, 500*time.Millisecond)
	if err != nil {
		return nil, err
	}
	p := &imagePolicy{operations: onCreateUpdate, cache: utilcache.NewLRUExpireCache(1024), failOpen: c.DefaultAllow}
	if p.allowTTL, err = durationWithin(c.AllowTTL, time.Second, time.Second, 30*time.Minute, 5*time.Minute); err != nil {
		return nil, err
	}
	if p.denyTTL, err = durationWithin(c.DenyTTL, time.Second, time.Second, 30*time.Minute, 30*time.Second); err != nil {
		return nil, err
	}
	client, err := webhook.LoadKubeconfig(c.KubeConfigFile, nil)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := imagepolicy.AddToScheme(scheme); err != nil {
		return nil, err
	}
	p.hook, err = webhook.NewGenericWebhook(scheme, serializer.NewCodecFactory(scheme), client,
		[]schema.GroupVersion{imagepolicy.SchemeGroupVersion}, webhook.DefaultRetryBackoffWithInitialDelay(backoff))
	if err != nil {
		return nil, err
	}
	return p, nil
}

// durationWithin returns the duration of n units, where n is a value of imagePolicyConfig. For -1, which disables the
// feature, it returns 0; for 0 it returns the default, otherwise. It returns an error if another duration is at most
// least or exceeds most.
func durationWithin(n int64, unit, least, most, otherwise time.Duration) (time.Duration, error) {
	switch n {
	case -1:
		return 0, nil
	case 0:
		return otherwise, nil
	}
	d := time.Duration(n) * unit
	if d <= least || d > most || n > int64(most/unit) {
		return 0, fmt.Errorf("valid value is between %v and %v, got %v", least, most, d)
	}
	return d, nil
}

// Validate rejects a new or updated pod, or one with new ephemeral containers, if the webhook does not allow the
// images. Other subresources are not reviewed.
func (p *imagePolicy) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	r, sub := a.GetResource(), a.GetSubresource()
	if r.Group != "" || r.Resource != "pods" || sub != "" && sub != "ephemeralcontainers" {
		return nil
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok {
		return apierrors.NewBadRequest("Resource was marked with kind Pod but was unable to be converted")
	}
	review := imagepolicy.ImageReview{Spec: imagepolicy.ImageReviewSpec{Namespace: a.GetNamespace(), Annotations: map[string]string{}}}
	add := func(image string) {
		review.Spec.Containers = append(review.Spec.Containers, imagepolicy.ImageReviewContainerSpec{Image: image})
	}
	if sub == "" {
		for i := range pod.Spec.Containers {
			add(pod.Spec.Containers[i].Image)
		}
		for i := range pod.Spec.InitContainers {
			add(pod.Spec.InitContainers[i].Image)
		}
	} else {
		for i := range pod.Spec.EphemeralContainers {
			add(pod.Spec.EphemeralContainers[i].Image)
		}
	}
	for k, v := range pod.Annotations {
		if strings.Contains(k, ".image-policy.k8s.io/") {
			review.Spec.Annotations[k] = v
		}
	}
	return p.review(ctx, a, pod, &review)
}

// review returns nil if the webhook allows the pod's images, and a Forbidden error otherwise. Responses are cached
// for allowTTL or denyTTL. If the webhook does not respond, failOpen decides, and an admitted pod is annotated. Audit
// annotations in the response are added to the audit event.
func (p *imagePolicy) review(ctx context.Context, a admission.Attributes, pod *corev1.Pod, review *imagepolicy.ImageReview) error {
	key, err := json.Marshal(review.Spec)
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if found, ok := p.cache.Get(string(key)); ok {
		if status, ok := found.(imagepolicy.ImageReviewStatus); ok {
			review.Status = status
		}
	} else {
		if err := p.callWebhook(ctx, review); err != nil {
			if !p.failOpen {
				return admission.NewForbidden(a, err)
			}
			// Record it in both the audit event and the pod.
			_ = a.AddAnnotation(imageAuditPrefix+"failed-open", "true")
			if pod.Annotations == nil {
				pod.Annotations = map[string]string{}
			}
			pod.Annotations[imageFailedOpen] = "true"
			return nil
		}
		ttl := p.denyTTL
		if review.Status.Allowed {
			ttl = p.allowTTL
		}
		p.cache.Add(string(key), review.Status, ttl)
	}
	for k, v := range review.Status.AuditAnnotations {
		_ = a.AddAnnotation(imageAuditPrefix+k, v)
	}
	switch {
	case review.Status.Allowed:
		return nil
	case review.Status.Reason != "":
		return forbid(a, "image policy webhook backend denied one or more images: %s", review.Status.Reason)
	default:
		return forbid(a, "one or more images rejected by webhook backend")
	}
}

// callWebhook sends the review to the webhook and fills its status with the response. It retries failed calls with
// back-off. It returns the last error, or an error if the status code is not 2xx.
func (p *imagePolicy) callWebhook(ctx context.Context, review *imagepolicy.ImageReview) error {
	result := p.hook.WithExponentialBackoff(ctx, func() rest.Result {
		return p.hook.RestClient.Post().Body(review).Do(ctx)
	})
	if err := result.Error(); err != nil {
		return err
	}
	var code int
	if result.StatusCode(&code); code < 200 || code >= 300 {
		return fmt.Errorf("error contacting webhook: %d", code)
	}
	return result.Into(review)
}
