// Package legacytokencleaner deletes Secrets with tokens that were made for
// service accounts without having been asked for, once nobody has used them for
// a year: it marks them first, so that they are not taken any more, and deletes
// them when as long has gone by again.
//
// https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#legacy-serviceaccount-token-cleaner
package legacytokencleaner

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/podrefs"
	"hyperkube/internal/tokens"
)

// DefaultPeriod is for how long a token must not have been used.
const DefaultPeriod = 365 * 24 * time.Hour

// interval is how often Secrets are looked at.
const interval = 24 * time.Hour

// Controller looks at all Secrets once a day. Make it with New.
type Controller struct {
	*control.Loop
	env      control.Env
	period   time.Duration
	accounts corelisters.ServiceAccountLister
	secrets  corelisters.SecretLister
	pods     corelisters.PodLister
}

// everything is the one key of the queue.
const everything = "all"

// New makes the controller; period zero is the default.
func New(env control.Env, period time.Duration) (*Controller, error) {
	env = env.Defaulted()
	switch {
	case period == 0:
		period = DefaultPeriod
	case period < 0:
		return nil, fmt.Errorf("invalid CleanUpPeriod: %v", period)
	}
	core := env.Informers.Core().V1()
	c := &Controller{
		env: env, period: period,
		accounts: core.ServiceAccounts().Lister(), secrets: core.Secrets().Lister(), pods: core.Pods().Lister(),
	}
	c.Loop = control.NewLoop(env, "legacy-service-account-token-cleaner", c.sync)
	c.Await(core.ServiceAccounts().Informer())
	c.Await(core.Secrets().Informer())
	c.Await(core.Pods().Informer())
	c.Add(everything)
	return c, nil
}

func (c *Controller) sync(ctx context.Context, _ string) error {
	defer c.AddAfter(everything, interval)
	now := c.env.Clock.Now().UTC()
	since, err := c.tracked(ctx)
	if err != nil {
		// The ConfigMap comes with the first start of the API server, and there
		// is nothing to do for a year then.
		c.env.Log.DebugContext(ctx, "it is not known since when the use of tokens is tracked", "error", err)
		return nil
	}
	if now.Before(since.Add(c.period)) {
		return nil
	}
	all, err := c.secrets.List(labels.Everything())
	if err != nil {
		return err
	}
	mounted := map[string]map[string]bool{} // by namespace, the Secrets that pods have
	for _, s := range all {
		if !c.unused(s, now) {
			continue
		}
		names := mounted[s.Namespace]
		if names == nil {
			if names, err = c.mounted(s.Namespace); err != nil {
				return err
			}
			mounted[s.Namespace] = names
		}
		if names[s.Name] {
			continue
		}
		if err := c.retire(ctx, s, now); err != nil {
			c.env.Log.ErrorContext(ctx, "a Secret with an unused token stays", "namespace", s.Namespace, "secret", s.Name, "error", err)
		}
	}
	return nil
}

// tracked is from when on the use of tokens is known: the day after that which
// the API server has written down.
func (c *Controller) tracked(ctx context.Context) (time.Time, error) {
	cm, err := c.env.Kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, tokens.TrackingName, metav1.GetOptions{})
	if err != nil {
		return time.Time{}, err
	}
	day, err := time.Parse(tokens.Day, cm.Data[tokens.TrackingKey])
	if err != nil {
		return time.Time{}, fmt.Errorf("since when tokens are tracked: %w", err)
	}
	return day.AddDate(0, 0, 1), nil
}

// unused tells whether a Secret has a token that was made without having been
// asked for, and that nobody has used for the period.
func (c *Controller) unused(s *corev1.Secret, now time.Time) bool {
	before := now.Add(-c.period)
	if s.Type != corev1.SecretTypeServiceAccountToken || !s.CreationTimestamp.Time.Before(before) || s.DeletionTimestamp != nil {
		return false
	}
	if last, labelled := s.Labels[tokens.LastUsedLabel]; labelled {
		if _, err := time.Parse(tokens.Day, last); err != nil || last >= before.Format(tokens.Day) {
			return false
		}
	}
	name := s.Annotations[corev1.ServiceAccountNameKey]
	if name == "" {
		return false
	}
	sa, err := c.accounts.ServiceAccounts(s.Namespace).Get(name)
	if err != nil {
		return false
	}
	if uid := s.Annotations[corev1.ServiceAccountUIDKey]; uid != "" && uid != string(sa.UID) {
		return false
	}
	return tokens.Generated(s, sa)
}

// retire marks a Secret, or deletes it when the mark is old enough.
func (c *Controller) retire(ctx context.Context, s *corev1.Secret, now time.Time) error {
	api := c.env.Kube.CoreV1().Secrets(s.Namespace)
	since := s.Labels[tokens.InvalidSinceLabel]
	if _, err := time.Parse(tokens.Day, since); err != nil {
		patch, err := tokens.LabelPatch(s, tokens.InvalidSinceLabel, now)
		if err != nil {
			return err
		}
		_, err = api.Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	if since >= now.Add(-c.period).Format(tokens.Day) {
		return nil
	}
	err := api.Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &s.ResourceVersion}})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// mounted are the Secrets that the pods of a namespace refer to.
func (c *Controller) mounted(namespace string) (map[string]bool, error) {
	pods, err := c.pods.Pods(namespace).List(labels.Everything())
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, p := range pods {
		for kind, name := range podrefs.Of(p) {
			if kind == podrefs.Secret {
				out[name] = true
			}
		}
	}
	return out, nil
}
