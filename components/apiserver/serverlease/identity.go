// Package serverlease publishes the identities of the API servers: each server maintains a Lease in
// kube-system, and deletes expired Leases of other servers.
//
// https://kubernetes.io/docs/concepts/architecture/leases/#api-server-identity
package serverlease

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

const (
	// label marks the Leases of API servers; server is its value for kube-apiserver.
	label  = "apiserver.kubernetes.io/identity"
	server = "kube-apiserver"

	// duration is the validity of a Lease, renewInterval the time between renewals, and
	// cleanupInterval the interval at which expired Leases of other servers are deleted.
	duration        = time.Hour
	renewInterval   = 10 * time.Second
	cleanupInterval = time.Hour
)

// Config is the configuration of a LeaseManager, which maintains the Lease that identifies this API
// server.
type Config struct {
	// Leases of the namespace kube-system.
	Leases coordination.LeaseInterface
	// Hostname of this host.
	Hostname string
	// Log receives errors. Nil means slog's default.
	Log *slog.Logger
}

// LeaseManager creates and renews the Lease of this API server, and deletes expired Leases of
// others.
type LeaseManager struct {
	cfg    Config
	name   string
	holder string
	// last is the last written Lease. Only Run uses it.
	last *coordinationv1.Lease
}

// New validates cfg and returns a LeaseManager. Run writes the Lease.
func New(cfg Config) (*LeaseManager, error) {
	if cfg.Leases == nil || cfg.Hostname == "" {
		return nil, errors.New("API server identity requires a lease client and a hostname")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	name := Name(cfg.Hostname)
	return &LeaseManager{cfg: cfg, name: name, holder: name + "_" + string(uuid.NewUUID())}, nil
}

// Name returns the name of the Lease of the API server on the host with this name.
func Name(hostname string) string {
	sum := sha256.Sum256([]byte(hostname))
	return "apiserver-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16]))
}

// Run renews the Lease and deletes expired ones, immediately and then at their intervals, until ctx is canceled.
// Failures are logged and retried at the next interval.
func (k *LeaseManager) Run(ctx context.Context) error {
	renew, clean := time.NewTicker(renewInterval), time.NewTicker(cleanupInterval)
	defer renew.Stop()
	defer clean.Stop()
	renewLease := func() {
		if err := k.renew(ctx, time.Now()); err != nil && ctx.Err() == nil {
			k.cfg.Log.Warn("renewing the Lease that identifies this API server failed; other API servers delete the Lease when it has expired after an hour, requests are not affected; retrying in 10 seconds", "lease", k.name, "err", err)
		}
	}
	cleanLeases := func() {
		if err := k.clean(ctx, time.Now()); err != nil && ctx.Err() == nil {
			k.cfg.Log.Warn("deleting expired Leases of stopped API servers in kube-system failed; they remain listed, nothing else is affected; retrying in an hour", "err", err)
		}
	}
	renewLease()
	cleanLeases()
	for {
		select {
		case <-renew.C:
			renewLease()
		case <-clean.C:
			cleanLeases()
		case <-ctx.Done():
			return nil
		}
	}
}

// renew writes the Lease with the renewal time now. It creates the Lease if it does not exist. After a conflict, or
// if the Lease was deleted, it reads the Lease and tries again.
func (k *LeaseManager) renew(ctx context.Context, now time.Time) error {
	var err error
	lease := k.last
	if lease == nil {
		lease, err = k.cfg.Leases.Get(ctx, k.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			k.last, err = k.cfg.Leases.Create(ctx, k.desired(&coordinationv1.Lease{}, now), metav1.CreateOptions{})
			return k.clearOnError(err)
		case err != nil:
			return err
		}
	}
	k.last, err = k.cfg.Leases.Update(ctx, k.desired(lease, now), metav1.UpdateOptions{})
	if k.clearOnError(err) != nil && (apierrors.IsConflict(err) || apierrors.IsNotFound(err)) {
		return k.renew(ctx, now) // reads the Lease first
	}
	return err
}

// clearOnError makes the next renewal read the Lease first if err is not nil, because the last
// written Lease may be outdated. It returns err.
func (k *LeaseManager) clearOnError(err error) error {
	if err != nil {
		k.last = nil
	}
	return err
}

// desired returns a copy of lease with this server's name, labels, holder and the renewal time now.
func (k *LeaseManager) desired(lease *coordinationv1.Lease, now time.Time) *coordinationv1.Lease {
	out := lease.DeepCopy()
	out.Name = k.name
	out.Labels = maps.Clone(out.Labels)
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	out.Labels[label], out.Labels[corev1.LabelHostname] = server, k.cfg.Hostname
	seconds, at := int32(duration/time.Second), metav1.NewMicroTime(now)
	out.Spec.HolderIdentity, out.Spec.LeaseDurationSeconds, out.Spec.RenewTime = &k.holder, &seconds, &at
	return out
}

// clean deletes the Leases of API servers that had expired at now or have no renewal time. Leases that change
// meanwhile are kept.
func (k *LeaseManager) clean(ctx context.Context, now time.Time) error {
	all, err := k.cfg.Leases.List(ctx, metav1.ListOptions{LabelSelector: labels.Set{label: server}.String()})
	if err != nil {
		return err
	}
	var errs []error
	for i := range all.Items {
		l := &all.Items[i]
		if l.Spec.RenewTime != nil && l.Spec.LeaseDurationSeconds != nil &&
			!l.Spec.RenewTime.Add(time.Duration(*l.Spec.LeaseDurationSeconds)*time.Second).Before(now) {
			continue
		}
		err := k.cfg.Leases.Delete(ctx, l.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
