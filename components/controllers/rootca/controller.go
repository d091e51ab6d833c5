// Package rootca publishes the cluster's CA certificates in each namespace, in the ConfigMap that
// projected service account volumes contain.
package rootca

import (
	"context"
	"errors"
	"maps"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"hyperkube/components/controllers/internal/control"
)

// Name, keys and description of the ConfigMap kube-root-ca.crt, from which pods read the CA certificates of the API
// server.
const (
	name           = "kube-root-ca.crt"
	dataKey        = "ca.crt"
	descriptionKey = "kubernetes.io/description"
	description    = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. " +
		"No other usage is guaranteed across distributions of Kubernetes clusters."
)

// Controller creates the ConfigMap kube-root-ca.crt in each active namespace, and restores its content when it is
// changed or deleted.
type Controller struct {
	*control.Loop
	env        control.Env
	data       map[string]string
	namespaces corelisters.NamespaceLister
	maps       corelisters.ConfigMapLister
	synced     *prometheus.CounterVec
	took       *prometheus.HistogramVec
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. ca contains the CA
// certificates in PEM format. The caller then starts the informers and calls Run.
func New(env control.Env, ca []byte) (*Controller, error) {
	env = env.Defaulted()
	namespaces := env.Informers.Core().V1().Namespaces()
	configMaps := env.Informers.Core().V1().ConfigMaps()
	c := &Controller{
		env:        env,
		data:       map[string]string{dataKey: string(ca)},
		namespaces: namespaces.Lister(),
		maps:       configMaps.Lister(),
		synced: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "root_ca_cert_publisher_sync_total", Help: "[ALPHA] Number of namespace syncs happened in root ca cert publisher.",
		}, []string{"code"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "root_ca_cert_publisher_sync_duration_seconds", Help: "[ALPHA] Number of namespace syncs happened in root ca cert publisher.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, []string{"code"}),
	}
	if err := env.Register(c.synced, c.took); err != nil {
		return nil, err
	}
	c.Loop = control.NewLoop(env, "rootca", c.sync)
	added := func(ns *corev1.Namespace) { c.Add(ns.Name) }
	if err := c.Watch(namespaces.Informer(), control.Handlers(added, func(_, ns *corev1.Namespace) { added(ns) }, nil)); err != nil {
		return nil, err
	}
	changed := func(m *corev1.ConfigMap) {
		if m.Name == name {
			c.Add(m.Namespace)
		}
	}
	return c, c.Watch(configMaps.Informer(), control.Handlers(nil, func(_, m *corev1.ConfigMap) { changed(m) }, changed))
}

// sync publishes the CA certificates in the namespace with the name key, and counts the result and its duration in the
// metrics by HTTP status.
func (c *Controller) sync(ctx context.Context, key string) error {
	began := c.env.Clock.Now()
	err := c.publish(ctx, key)
	code := "200"
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &status):
		code = strconv.Itoa(int(status.Status().Code))
	case err != nil:
		code = "500"
	}
	c.synced.WithLabelValues(code).Inc()
	c.took.WithLabelValues(code).Observe(c.env.Clock.Since(began).Seconds())
	return err
}

// publish creates or corrects the ConfigMap kube-root-ca.crt in the namespace with the name key, unless the namespace
// does not exist or is not active.
func (c *Controller) publish(ctx context.Context, key string) error {
	ns, err := c.namespaces.Get(key)
	if err != nil || ns.Status.Phase != corev1.NamespaceActive {
		return nil
	}
	there, err := c.maps.ConfigMaps(key).Get(name)
	if apierrors.IsNotFound(err) {
		_, err = c.env.Kube.CoreV1().ConfigMaps(key).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{descriptionKey: description}},
			Data:       c.data,
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		return err
	}
	if err != nil {
		return err
	}
	if maps.Equal(there.Data, c.data) && there.Annotations[descriptionKey] != "" {
		return nil
	}
	next := there.DeepCopy()
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	next.Annotations[descriptionKey] = description
	next.Data = c.data
	_, err = c.env.Kube.CoreV1().ConfigMaps(key).Update(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
