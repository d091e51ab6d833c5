package bootstraptokens

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"

	"hyperkube/components/controllers/internal/control"
)

// infoName is the ConfigMap with the public kubeconfig of the cluster. kubeconfigKey is the key of the kubeconfig in
// its data, signaturePrefix the prefix of the keys of signatures.
const (
	infoName        = "cluster-info"
	kubeconfigKey   = "kubeconfig"
	signaturePrefix = "jws-kubeconfig-"
)

// Signer maintains the signatures in the ConfigMap kube-public/cluster-info: one of its kubeconfig for each bootstrap
// token that allows signing. Use NewSigner to create it.
type Signer struct {
	*control.Loop
	env     control.Env
	secrets corelisters.SecretLister
	configs corelisters.ConfigMapLister
}

// NewSigner returns a Signer that uses the API client, the informers and the event recorder in env. The caller then
// starts the informers and calls Run.
func NewSigner(env control.Env) (*Signer, error) {
	env = env.Defaulted()
	env.Workers = 1
	core := env.Informers.Core().V1()
	s := &Signer{env: env, secrets: core.Secrets().Lister(), configs: core.ConfigMaps().Lister()}
	s.Loop = control.NewLoop(env, "bootstrap_signer", s.sync)
	if err := s.Watch(core.Secrets().Informer(), control.AnyEvent(func(t *corev1.Secret) {
		if isToken(t) {
			s.Add(infoName)
		}
	})); err != nil {
		return nil, err
	}
	return s, s.Watch(core.ConfigMaps().Informer(), control.AnyEvent(func(c *corev1.ConfigMap) {
		if c.Namespace == metav1.NamespacePublic && c.Name == infoName {
			s.Add(infoName)
		}
	}))
}

// sync replaces the signatures in the ConfigMap by those of all valid tokens, and schedules another sync for the
// expiration of each token. It does nothing if the ConfigMap does not exist or contains no kubeconfig.
func (s *Signer) sync(ctx context.Context, _ string) error {
	info, err := s.configs.ConfigMaps(metav1.NamespacePublic).Get(infoName)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	content, ok := info.Data[kubeconfigKey]
	if !ok {
		return nil
	}
	tokens, err := s.secrets.Secrets(metav1.NamespaceSystem).List(labels.Everything())
	if err != nil {
		return err
	}
	next := info.DeepCopy()
	maps.DeleteFunc(next.Data, func(key, _ string) bool { return strings.HasPrefix(key, signaturePrefix) })
	now := s.env.Clock.Now()
	for _, t := range tokens {
		id, secret, ok := signingToken(t, now)
		if !ok {
			continue
		}
		if next.Data[signaturePrefix+id], err = Sign(content, id, secret); err != nil {
			return err
		}
		if d, expires := remainingLifetime(t, now); expires {
			s.AddAfter(infoName, d+time.Second)
		}
	}
	if maps.Equal(info.Data, next.Data) {
		return nil
	}
	_, err = s.env.Kube.CoreV1().ConfigMaps(info.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// SignatureKey returns the key in the data of the ConfigMap under which the signature with the token of this ID is
// stored.
func SignatureKey(id string) string { return signaturePrefix + id }

// Verify reports whether signature is the signature of content with the token that has this ID and secret. A joining
// machine calls it.
func Verify(content, signature, id, secret string) bool {
	right, err := Sign(content, id, secret)
	return err == nil && hmac.Equal([]byte(right), []byte(signature))
}

// Sign returns the detached JSON Web Signature of content with the token that has this ID and secret.
func Sign(content, id, secret string) (string, error) {
	header, err := json.Marshal(struct {
		Alg string `json:"alg"`
		Kid string `json:"kid"`
	}{"HS256", id})
	if err != nil {
		return "", err
	}
	enc := base64.RawURLEncoding
	head := enc.EncodeToString(header)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(head + "." + enc.EncodeToString([]byte(content))))
	return head + ".." + enc.EncodeToString(mac.Sum(nil)), nil
}
