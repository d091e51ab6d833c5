package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/lru"
)

// limitType is the kind of key by which an event rate limit counts events: all together, by
// namespace, by user, or by source and object.
type limitType string

const (
	limitServer    limitType = "Server"
	limitNamespace limitType = "Namespace"
	limitUser      limitType = "User"
	limitSource    limitType = "SourceAndObject"
)

// eventLimit is one limit in the configuration of the plugin EventRateLimit.
type eventLimit struct {
	Type limitType `json:"type"`
	// QPS is the number of events per second for each key, Burst the maximum burst.
	QPS   int32 `json:"qps"`
	Burst int32 `json:"burst"`
	// CacheSize is the maximum number of keys that are counted; beyond it, the least recently used key is forgotten.
	// Zero means 4096. For the type Server it is ignored.
	CacheSize int32 `json:"cacheSize,omitempty"`
}

// eventLimits is the configuration of the plugin EventRateLimit.
//
// https://kubernetes.io/docs/reference/config-api/apiserver-eventratelimit.v1alpha1/
type eventLimits struct {
	metav1.TypeMeta `json:",inline"`
	Limits          []eventLimit `json:"limits"`
}

// validate returns the errors in the limits, or nil: there must be at least one, of a known type, with a positive QPS
// and burst, and without a negative cache size.
func (c *eventLimits) validate() error {
	var errs field.ErrorList
	limits := field.NewPath("limits")
	if len(c.Limits) == 0 {
		errs = append(errs, field.Invalid(limits, c.Limits, "must not be empty"))
	}
	types := []limitType{limitNamespace, limitServer, limitSource, limitUser}
	for i, l := range c.Limits {
		p := limits.Index(i)
		if !slices.Contains(types, l.Type) {
			errs = append(errs, field.NotSupported(p.Child("type"), l.Type, types))
		}
		if l.Burst <= 0 {
			errs = append(errs, field.Invalid(p.Child("burst"), l.Burst, "must be positive"))
		}
		if l.QPS <= 0 {
			errs = append(errs, field.Invalid(p.Child("qps"), l.QPS, "must be positive"))
		}
		if l.Type != limitServer && l.CacheSize < 0 {
			errs = append(errs, field.Invalid(p.Child("cacheSize"), l.CacheSize, "must not be negative"))
		}
	}
	return errs.ToAggregate()
}

// eventRateLimit is the plugin EventRateLimit. It rejects events that exceed the configured rates.
type eventRateLimit struct {
	operations
	meters []*eventMeter
}

// eventMeter counts events for one configured limit. It is safe for concurrent use.
type eventMeter struct {
	limit eventLimit
	// buckets contains a flowcontrol.RateLimiter for each key. It has its own lock.
	buckets *lru.Cache
}

// newEventRateLimit creates the plugin EventRateLimit with the limits in its configuration file. It returns an error
// if there is no file or it is invalid.
func newEventRateLimit(cfg *Config) (admission.Interface, error) {
	data := cfg.Files["EventRateLimit"]
	if len(data) == 0 {
		return nil, errors.New("it needs a configuration with limits")
	}
	var limits eventLimits
	if err := decodeConfiguration(data, "eventratelimit.admission.k8s.io/v1alpha1", &limits); err != nil {
		return nil, err
	}
	if err := limits.validate(); err != nil {
		return nil, err
	}
	p := &eventRateLimit{operations: onCreateUpdate}
	for _, l := range limits.Limits {
		size := int(l.CacheSize)
		if size == 0 {
			size = 4096
		}
		if l.Type == limitServer {
			size = 1
		}
		p.meters = append(p.meters, &eventMeter{limit: l, buckets: lru.New(size)})
	}
	return p, nil
}

// Validate rejects a new or updated event of either API group with an error 429 if one of the limits is exceeded.
// Every limit counts every event, even if another limit has rejected it.
func (p *eventRateLimit) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !isRequestFor(a, corev1.GroupName, "events") && !isRequestFor(a, eventsv1.GroupName, "events") {
		return nil
	}
	var refused error
	for _, m := range p.meters {
		if err := m.allow(a); err != nil {
			refused = err
		}
	}
	return refused
}

// allow returns a TooManyRequests error if the request exceeds the limit for its key, and otherwise counts it.
func (m *eventMeter) allow(a admission.Attributes) error {
	key := m.limit.Type.key(a)
	// Two concurrent first requests may briefly use two buckets. Only one of them is kept.
	bucket, ok := m.buckets.Get(key)
	if !ok {
		bucket = flowcontrol.NewTokenBucketRateLimiter(float32(m.limit.QPS), int(m.limit.Burst))
		m.buckets.Add(key, bucket)
	}
	if limiter, ok := bucket.(flowcontrol.RateLimiter); ok && !limiter.TryAccept() {
		return apierrors.NewTooManyRequestsError(fmt.Sprintf("limit reached on type %v for key %v", m.limit.Type, key))
	}
	return nil
}

// key returns the key by which a limit of the type counts a request: the namespace, the user, or the source and
// object of the event. It is empty for the type Server, and for requests without such a value.
func (t limitType) key(a admission.Attributes) string {
	switch t {
	case limitNamespace:
		return a.GetNamespace()
	case limitUser:
		if u := a.GetUserInfo(); u != nil {
			return u.GetName()
		}
	case limitSource:
		switch e := a.GetObject().(type) {
		case *corev1.Event:
			return sourceKey(e.Source.Component, e.Source.Host, e.InvolvedObject)
		case *eventsv1.Event:
			return sourceKey(e.DeprecatedSource.Component, e.DeprecatedSource.Host, e.Regarding)
		}
	}
	return ""
}

// sourceKey returns the key of a limit of the type SourceAndObject: the source of an event and the object that it is
// about.
func sourceKey(component, host string, o corev1.ObjectReference) string {
	return strings.Join([]string{component, host, o.Kind, o.Namespace, o.Name, string(o.UID), o.APIVersion}, "")
}
