// Package tokentracking keeps the ConfigMap that tells since when the API
// servers take note of tokens in Secrets that are used, so that whoever deletes
// those that are not knows from when on to count.
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

	"hyperkube/internal/lifecycle"
	"hyperkube/internal/store"
	"hyperkube/internal/tokens"
)

// How long to wait after a failure, and between two creations: servers without
// tracking delete the ConfigMap.
const (
	pause = time.Second
	again = 30 * time.Minute
)

// Config of a Keeper.
type Config struct {
	// ConfigMaps are watched.
	ConfigMaps *store.Collection
	// Kube is a superuser's client.
	Kube kubernetes.Interface
	// Now is time.Now when nil.
	Now func() time.Time
	Log *slog.Logger
}

// Keeper keeps the ConfigMap.
type Keeper struct {
	cfg  Config
	made time.Time // when it was last created
}

// New validates cfg.
func New(cfg Config) (*Keeper, error) {
	if cfg.ConfigMaps == nil || cfg.Kube == nil || cfg.Log == nil {
		return nil, errors.New("tracking tokens takes ConfigMaps, a client and a log")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Keeper{cfg: cfg}, nil
}

// Run writes the ConfigMap, and again when somebody changed it, until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := k.keep(ctx)
		if ctx.Err() != nil {
			break
		}
		if !errors.Is(err, store.ErrTooOld) {
			k.cfg.Log.ErrorContext(ctx, "since when tokens are tracked could not be kept", "error", err)
		}
		lifecycle.Pause(ctx, pause)
	}
	return nil
}

func (k *Keeper) keep(ctx context.Context) error {
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
		// Until it may be created again, nothing else counts.
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

// write makes the ConfigMap what it should be. It returns how long to wait if it
// may not be created yet.
func (k *Keeper) write(ctx context.Context) (wait time.Duration, err error) {
	api, now := k.cfg.Kube.CoreV1().ConfigMaps(metav1.NamespaceSystem), k.cfg.Now()
	today := now.UTC().Format(tokens.Day)
	has, err := api.Get(ctx, tokens.TrackingName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		if left := again - now.Sub(k.made); !k.made.IsZero() && left > 0 {
			return left, nil
		}
		_, err = api.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: tokens.TrackingName},
			Data:       map[string]string{tokens.TrackingKey: today},
		}, metav1.CreateOptions{})
		if err == nil {
			k.made = now
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
	// Who was quicker is heard of by the watch.
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return 0, nil
	}
	return 0, err
}
