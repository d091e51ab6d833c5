package filters

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"hyperkube/components/apiserver/metrics"
	"hyperkube/components/apiserver/rest"
)

// authorize returns nil if the user u is authorized for the request, and otherwise a Forbidden error or the error of
// the authorizer, with which the chain responds. began is the time at which authorization started, for metrics.
func (c *Chain) authorize(ctx context.Context, info *apirequest.RequestInfo, u user.Info, began time.Time) error {
	return c.decide(ctx, attributesOf(info, u), began)
}

// attributesOf returns the authorizer attributes of a request of the user u. Selectors that cannot be parsed are
// recorded as errors in the attributes.
func attributesOf(info *apirequest.RequestInfo, u user.Info) *authorizer.AttributesRecord {
	a := &authorizer.AttributesRecord{
		User:            u,
		Verb:            info.Verb,
		Namespace:       info.Namespace,
		APIGroup:        info.APIGroup,
		APIVersion:      info.APIVersion,
		Resource:        info.Resource,
		Subresource:     info.Subresource,
		Name:            info.Name,
		ResourceRequest: info.IsResourceRequest,
		Path:            info.Path,
	}
	if info.FieldSelector != "" {
		if s, err := fields.ParseSelector(info.FieldSelector); err != nil {
			a.FieldSelectorParsingErr = err
		} else if rs := s.Requirements(); len(rs) > 0 {
			a.FieldSelectorRequirements = rs
		}
	}
	if info.LabelSelector != "" {
		if s, err := labels.Parse(info.LabelSelector); err != nil {
			a.LabelSelectorParsingErr = err
		} else if rs, _ := s.Requirements(); len(rs) > 0 {
			a.LabelSelectorRequirements = rs
		}
	}
	return a
}

// Keys of the audit annotations that contain the authorization decision and its reason.
const (
	decisionKey = "authorization.k8s.io/decision"
	reasonKey   = "authorization.k8s.io/reason"
)

// decide requests a decision about a from the authorizer. It returns nil if the request is allowed, a Forbidden error
// if not, and an internal error if the authorizer failed. It adds the decision to the audit event and to the metrics.
func (c *Chain) decide(ctx context.Context, a authorizer.Attributes, began time.Time) error {
	decision, reason, err := c.cfg.Authorizer.Authorize(ctx, a)
	took := time.Since(began)
	c.cfg.Metrics.Authorized(outcome(decision, err), took)
	c.cfg.Metrics.ObserveStage(metrics.Authorization, took)
	switch {
	case decision == authorizer.DecisionAllow:
		audit.AddAuditAnnotations(ctx, decisionKey, "allow", reasonKey, reason)
		return nil
	case err != nil:
		audit.AddAuditAnnotation(ctx, reasonKey, "internal error")
		return apierrors.NewInternalError(err)
	}
	audit.AddAuditAnnotations(ctx, decisionKey, "forbid", reasonKey, reason)
	return rest.Forbidden(a, reason)
}

// outcome returns the metric label of a decision. err is the error of the authorizer, or nil.
func outcome(decision authorizer.Decision, err error) metrics.Decision {
	switch {
	case decision == authorizer.DecisionAllow:
		return metrics.Allowed
	case err != nil:
		return metrics.Failed
	case decision == authorizer.DecisionDeny:
		return metrics.Denied
	}
	return metrics.NoOpinion
}
