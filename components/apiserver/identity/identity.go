// Package identity tells which API servers there are: each keeps a Lease in
// kube-system, and deletes those of servers that are gone.
//
// https://kubernetes.io/docs/concepts/architecture/leases/#api-server-identity
package identity

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
	// label of the Leases of API servers, and its value for those of the core.
	label  = "apiserver.kubernetes.io/identity"
	server = "kube-apiserver"

	// duration is for how long a server is taken to be there after it renewed
	// its Lease, which it does every interval. sweep is how often Leases of
	// servers that are gone are looked for.
	duration = time.Hour
	interval = 10 * time.Second
	sweep    = time.Hour
)

// Config of a Keeper.
type Config struct {
	// Leases of the namespace kube-system.
	Leases coordination.LeaseInterface
	// Hostname of this machine.
	Hostname string
	// Log receives what goes wrong; nil: slog's default.
	Log *slog.Logger
}

// Keeper keeps this server's Lease.
type Keeper struct {
	cfg    Config
	name   string
	holder string
	// last is the Lease as it was written last; Run's alone.
	last *coordinationv1.Lease
}

// New validates cfg.
func New(cfg Config) (*Keeper, error) {
	if cfg.Leases == nil || cfg.Hostname == "" {
		return nil, errors.New("the identity of an API server takes leases and a host name")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	name := Name(cfg.Hostname)
	return &Keeper{cfg: cfg, name: name, holder: name + "_" + string(uuid.NewUUID())}, nil
}

// Name is the name of the Lease of the API server on a host.
func Name(hostname string) string {
	sum := sha256.Sum256([]byte(hostname))
	return "apiserver-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16]))
}

// Run keeps the Lease until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	renew, clean := time.NewTicker(interval), time.NewTicker(sweep)
	defer renew.Stop()
	defer clean.Stop()
	report := func(err error) {
		if err != nil && ctx.Err() == nil {
			k.cfg.Log.Warn("Could not keep the lease of this API server", "lease", k.name, "error", err)
		}
	}
	report(k.renew(ctx, time.Now()))
	report(k.clean(ctx, time.Now()))
	for {
		select {
		case <-renew.C:
			report(k.renew(ctx, time.Now()))
		case <-clean.C:
			report(k.clean(ctx, time.Now()))
		case <-ctx.Done():
			return nil
		}
	}
}

// renew writes the Lease; one that somebody has deleted is made anew.
func (k *Keeper) renew(ctx context.Context, now time.Time) error {
	var err error
	lease := k.last
	if lease == nil {
		lease, err = k.cfg.Leases.Get(ctx, k.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			k.last, err = k.cfg.Leases.Create(ctx, k.wanted(&coordinationv1.Lease{}, now), metav1.CreateOptions{})
			return k.unless(err)
		case err != nil:
			return err
		}
	}
	k.last, err = k.cfg.Leases.Update(ctx, k.wanted(lease, now), metav1.UpdateOptions{})
	if k.unless(err) != nil && (apierrors.IsConflict(err) || apierrors.IsNotFound(err)) {
		return k.renew(ctx, now) // reads it first now
	}
	return err
}

// unless forgets what was written last when err says that it may not be so.
func (k *Keeper) unless(err error) error {
	if err != nil {
		k.last = nil
	}
	return err
}

// wanted is lease as it shall be.
func (k *Keeper) wanted(lease *coordinationv1.Lease, now time.Time) *coordinationv1.Lease {
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

// clean deletes the Leases of servers that have not been there for long.
func (k *Keeper) clean(ctx context.Context, now time.Time) error {
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
