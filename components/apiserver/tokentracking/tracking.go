// Package tokentracking maintains the ConfigMap with the date since which the API servers record
// the use of legacy Secret-based tokens. The controller that deletes unused tokens needs this date.
//
// https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#legacy-serviceaccount-token-tracking
package tokentracking

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/credentials/tokens"
	"hyperkube/internal/store"
)

// retryDelay is the delay after a failure. minRecreateInterval is the minimum time between two
// creations of the ConfigMap, because API servers without tracking delete it.
const (
	retryDelay          = time.Second
	minRecreateInterval = 30 * time.Minute
)

// Config is the configuration of a ConfigMapReconciler, which maintains the ConfigMap about the
// tracking of token usage.
type Config struct {
	// ConfigMaps is the collection of all ConfigMaps, in which the ConfigMap is watched.
	ConfigMaps *store.Collection
	// Kube is a client with superuser permissions.
	Kube kubernetes.Interface
	// Now returns the current time. Nil means time.Now.
	Now func() time.Time
	// Log receives a warning when the ConfigMap cannot be watched or written. It must not be nil.
	Log *slog.Logger
}

// ConfigMapReconciler keeps the ConfigMap kube-apiserver-legacy-service-account-token-tracking in kube-system in
// existence, with a valid date.
type ConfigMapReconciler struct {
	cfg     Config
	created time.Time // time of the last creation
}

// New validates cfg and returns a ConfigMapReconciler. Run writes the ConfigMap.
func New(cfg Config) (*ConfigMapReconciler, error) {
	if cfg.ConfigMaps == nil || cfg.Kube == nil || cfg.Log == nil {
		return nil, errors.New("token tracking requires ConfigMaps, a client and a logger")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &ConfigMapReconciler{cfg: cfg}, nil
}

// Run writes the ConfigMap now, and again after another client has deleted it or made its date invalid, until ctx is
// canceled. Errors are logged and retried after retryDelay.
func (k *ConfigMapReconciler) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := k.reconcile(ctx)
		if ctx.Err() != nil {
			break
		}
		if !errors.Is(err, store.ErrTooOld) {
			k.cfg.Log.WarnContext(ctx, "watching or writing ConfigMap kube-apiserver-legacy-service-account-token-tracking failed; as long as the ConfigMap is missing or invalid, unused legacy service account tokens are not deleted, authentication is not affected; retrying in a second", "err", err)
		}
		lifecycle.Pause(ctx, retryDelay)
	}
	return nil
}

// reconcile writes the ConfigMap now and after each change, until ctx is canceled or an error occurs. It returns that
// error, which is never nil; it wraps store.ErrTooOld if the watch must only be started again.
func (k *ConfigMapReconciler) reconcile(ctx context.Context) error {
	w, err := k.cfg.ConfigMaps.Watch(ctx, store.WatchOptions{Key: metav1.NamespaceSystem + "/" + tokens.TrackingName})
	if err != nil {
		return fmt.Errorf("watching a ConfigMap: %w", err)
	}
	defer w.Close()
	for {
		wait, err := k.write(ctx)
		if err != nil {
			return err
		}
		// Ignore changes until the ConfigMap may be created again.
		for wait > 0 {
			if !lifecycle.Pause(ctx, wait) {
				return ctx.Err()
			}
			if wait, err = k.write(ctx); err != nil {
				return err
			}
		}
		if _, err := w.Next(ctx); err != nil {
			return fmt.Errorf("watching a ConfigMap: %w", err)
		}
	}
}

// write creates the ConfigMap with today's date, or sets its date if that is missing or invalid. wait is positive if
// the ConfigMap is missing but may only be created again after that time. A concurrent write of another client is not
// an error, because the watch reports it.
func (k *ConfigMapReconciler) write(ctx context.Context) (wait time.Duration, err error) {
	api, now := k.cfg.Kube.CoreV1().ConfigMaps(metav1.NamespaceSystem), k.cfg.Now()
	today := now.UTC().Format(tokens.Day)
	has, err := api.Get(ctx, tokens.TrackingName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		if left := minRecreateInterval - now.Sub(k.created); !k.created.IsZero() && left > 0 {
			return left, nil
		}
		_, err = api.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: tokens.TrackingName},
			Data:       map[string]string{tokens.TrackingKey: today},
		}, metav1.CreateOptions{})
		if err == nil {
			k.created = now
		}
	case err != nil:
		return 0, err
	default:
		if _, wrong := time.Parse(tokens.Day, has.Data[tokens.TrackingKey]); wrong == nil {
			return 0, nil
		}
		changed := has.DeepCopy()
		if changed.Data == nil {
			changed.Data = map[string]string{}
		}
		changed.Data[tokens.TrackingKey] = today
		_, err = api.Update(ctx, changed, metav1.UpdateOptions{})
	}
	// The watch reports concurrent changes.
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return 0, nil
	}
	return 0, err
}
