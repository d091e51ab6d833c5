// Package legacytokencleaner deletes auto-generated Secrets with service account tokens that have
// not been used for a year. It first marks them as invalid, so that the API server rejects them,
// and deletes them after another period.
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
	"hyperkube/internal/api/podrefs"
	"hyperkube/internal/credentials/tokens"
)

// DefaultPeriod is the default period: how long a token must be unused until it becomes invalid, and how long it must
// then be invalid until it is deleted.
const DefaultPeriod = 365 * 24 * time.Hour

// interval is the interval at which all Secrets are checked.
const interval = 24 * time.Hour

// Controller checks all Secrets once a day, and invalidates or deletes those with unused tokens. Secrets that a pod
// refers to are kept.
type Controller struct {
	*control.Loop
	env      control.Env
	period   time.Duration
	accounts corelisters.ServiceAccountLister
	secrets  corelisters.SecretLister
	pods     corelisters.PodLister
}

// syncKey is the only key of the work queue, because one sync checks all Secrets.
const syncKey = "all"

// New returns a Controller that uses the API client, the informers and the event recorder in env. A zero period means
// DefaultPeriod; a negative one is an error. The caller then starts the informers and calls Run.
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
	c.Add(syncKey)
	return c, nil
}

// sync checks all Secrets, and schedules the next round. It invalidates and deletes none before the API server has
// tracked the use of tokens for the configured period. It logs errors of single Secrets and continues with the
// others.
func (c *Controller) sync(ctx context.Context, _ string) error {
	defer c.AddAfter(syncKey, interval)
	now := c.env.Clock.Now().UTC()
	since, err := c.trackedSince(ctx)
	if err != nil {
		// The API server creates the ConfigMap at its first start. Nothing has to be deleted in the
		// following year.
		c.env.Log.DebugContext(ctx, "start of token usage tracking is unknown, keeping unused service account token Secrets until the next daily check", "err", err)
		return nil
	}
	if now.Before(since.Add(c.period)) {
		return nil
	}
	all, err := c.secrets.List(labels.Everything())
	if err != nil {
		return err
	}
	mounted := map[string]map[string]bool{} // the Secrets that pods refer to, by namespace
	for _, s := range all {
		if !c.unused(s, now) {
			continue
		}
		names := mounted[s.Namespace]
		if names == nil {
			if names, err = c.mountedSecrets(s.Namespace); err != nil {
				return err
			}
			mounted[s.Namespace] = names
		}
		if names[s.Name] {
			continue
		}
		if err := c.invalidateOrDelete(ctx, s, now); err != nil {
			c.env.Log.ErrorContext(ctx, "invalidating or deleting Secret with an unused service account token failed; the Secret stays as it is, retrying in 24 hours", "namespace", s.Namespace, "secret", s.Name, "err", err)
		}
	}
	return nil
}

// trackedSince returns since when the API server has recorded each use of a token: the day after the day that it stored
// in a ConfigMap, because it recorded only a part of that day. It returns an error if the ConfigMap does not exist or
// is invalid.
func (c *Controller) trackedSince(ctx context.Context) (time.Time, error) {
	cm, err := c.env.Kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, tokens.TrackingName, metav1.GetOptions{})
	if err != nil {
		return time.Time{}, err
	}
	day, err := time.Parse(tokens.Day, cm.Data[tokens.TrackingKey])
	if err != nil {
		return time.Time{}, fmt.Errorf("parsing start of token usage tracking: %w", err)
	}
	return day.AddDate(0, 0, 1), nil
}

// unused reports whether s contains an auto-generated token of an existing service account, is older than the period,
// and was not used in the period before now. It is false if the label with the last use is invalid.
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

// invalidateOrDelete marks s as invalid since now, or deletes s if it was marked longer than the period ago. In
// between, it does nothing.
func (c *Controller) invalidateOrDelete(ctx context.Context, s *corev1.Secret, now time.Time) error {
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

// mountedSecrets returns the names of the Secrets that the pods of a namespace refer to in their specs.
func (c *Controller) mountedSecrets(namespace string) (map[string]bool, error) {
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
