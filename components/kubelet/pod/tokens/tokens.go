// Package tokens provides the service account tokens of pods.
package tokens

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"hyperkube/components/kubelet/pod/objectcache"
)

// Cache requests service account tokens of pods from the API server and caches them until they must be
// renewed. Its methods are safe for concurrent use.
type Cache struct {
	kube kubernetes.Interface // may be nil

	mu    sync.Mutex // guards cache
	cache map[tokenKey]token
}

// tokenKey identifies a token in the cache: the pod, its service account, the audience, and the requested lifetime
// in seconds.
type tokenKey struct {
	pod      types.UID
	account  string
	audience string
	seconds  int64
}

// token is a cached token. It must be renewed at refresh, before it expires.
type token struct {
	text             string
	refresh, expires time.Time
}

// New returns an empty Cache. Without an API server kube is nil, and all requests fail.
func New(kube kubernetes.Interface) *Cache {
	return &Cache{kube: kube, cache: map[tokenKey]token{}}
}

// Token returns the token of a projected volume source and when it must be renewed. It implements
// volume.Tokens.
func (t *Cache) Token(ctx context.Context, pod *v1.Pod, p *v1.ServiceAccountTokenProjection) (string, time.Time, error) {
	text, _, refresh, err := t.Bound(ctx, pod, p.Audience, p.ExpirationSeconds)
	return text, refresh, err
}

// ForAudience returns a token for an audience with the default lifetime of one hour.
func (t *Cache) ForAudience(ctx context.Context, pod *v1.Pod, audience string) (string, error) {
	text, _, _, err := t.Bound(ctx, pod, audience, nil)
	return text, err
}

// Bound returns a token of the pod's service account that is bound to the pod, when it expires, and when it
// must be renewed: after 80 % of its lifetime, at most after a day. An empty audience is that of the API
// server. lifetime is in seconds; nil means one hour. If the API server cannot be reached, a cached token is
// returned until it expires. It implements csi.Tokens.
func (t *Cache) Bound(ctx context.Context, pod *v1.Pod, audience string, lifetime *int64) (text string, expires, refresh time.Time, err error) {
	none := time.Time{}
	if t.kube == nil {
		return "", none, none, fmt.Errorf("requesting token of service account %s: %w", pod.Spec.ServiceAccountName, objectcache.ErrNoAPI)
	}
	seconds := int64(3600)
	if lifetime != nil {
		seconds = *lifetime
	}
	key := tokenKey{pod.UID, pod.Spec.ServiceAccountName, audience, seconds}
	now := time.Now()
	t.mu.Lock()
	have, ok := t.cache[key]
	t.mu.Unlock()
	if ok && now.Before(have.refresh) {
		return have.text, have.expires, have.refresh, nil
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if audience != "" {
		request.Spec.Audiences = []string{audience}
	}
	got, err := t.kube.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		if ok && now.Before(have.expires) {
			// The old token is still valid.
			return have.text, have.expires, now.Add(time.Minute), nil
		}
		return "", none, none, fmt.Errorf("failed to fetch token: %w", err)
	}
	expires = got.Status.ExpirationTimestamp.Time
	life := min(expires.Sub(now)*8/10, 24*time.Hour)
	fresh := token{text: got.Status.Token, expires: expires, refresh: now.Add(life - rand.N(10*time.Second))}
	t.mu.Lock()
	t.cache[key] = fresh
	for k, v := range t.cache {
		if now.After(v.expires) {
			delete(t.cache, k)
		}
	}
	t.mu.Unlock()
	return fresh.text, fresh.expires, fresh.refresh, nil
}

// Forget removes the tokens of a pod that was removed from the node.
func (t *Cache) Forget(pod types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.cache {
		if k.pod == pod {
			delete(t.cache, k)
		}
	}
}
