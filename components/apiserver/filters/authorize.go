package filters

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"hyperkube/components/apiserver/metrics"
	"hyperkube/components/apiserver/rest"
)

// authorize asks whether u may do what a request wants.
func (c *Chain) authorize(ctx context.Context, info *apirequest.RequestInfo, u user.Info) error {
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
	return c.decide(ctx, a)
}

// The audit annotations of what was decided about a request.
const (
	decisionKey = "authorization.k8s.io/decision"
	reasonKey   = "authorization.k8s.io/reason"
)

// decide is allowed for the request itself: the decision goes on the record.
func (c *Chain) decide(ctx context.Context, a authorizer.Attributes) error {
	began := time.Now()
	decision, reason, err := c.cfg.Authorizer.Authorize(ctx, a)
	c.cfg.Metrics.Authorized(outcome(decision, err), time.Since(began))
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

// outcome is how metrics call a decision.
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

// allowed returns nil when the authorizer agrees, and what to answer when not.
func (c *Chain) allowed(ctx context.Context, a authorizer.Attributes) error {
	decision, reason, err := c.cfg.Authorizer.Authorize(ctx, a)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return rest.Forbidden(a, reason)
}

// impersonate returns as whom a request is to be treated; nil: its sender, who
// must otherwise be allowed to be each part of that.
//
// https://kubernetes.io/docs/reference/access-authn-authz/user-impersonation/
func (c *Chain) impersonate(ctx context.Context, req *http.Request, u user.Info) (user.Info, error) {
	h := req.Header
	name := h.Get(authenticationv1.ImpersonateUserHeader)
	groups := h[authenticationv1.ImpersonateGroupHeader]
	uid := h.Get(authenticationv1.ImpersonateUIDHeader)
	var extra map[string][]string
	for header, values := range h {
		if !strings.HasPrefix(header, authenticationv1.ImpersonateUserExtraHeaderPrefix) {
			continue
		}
		key := strings.ToLower(header[len(authenticationv1.ImpersonateUserExtraHeaderPrefix):])
		if unescaped, err := url.PathUnescape(key); err == nil {
			key = unescaped
		}
		if extra == nil {
			extra = map[string][]string{}
		}
		extra[key] = append(extra[key], values...)
	}
	if name == "" {
		if len(groups) > 0 || uid != "" || len(extra) > 0 {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("requested groups %v, uid %q and extra %v without impersonating a user", groups, uid, extra))
		}
		return nil, nil
	}

	ask := func(a authorizer.AttributesRecord) error {
		a.User, a.Verb, a.ResourceRequest = u, "impersonate", true
		return c.allowed(ctx, &a)
	}
	out := &user.DefaultInfo{Name: name, UID: uid, Groups: slices.Clone(groups), Extra: extra}
	if ns, account, err := serviceaccount.SplitUsername(name); err == nil {
		if err := ask(authorizer.AttributesRecord{Resource: "serviceaccounts", Namespace: ns, Name: account}); err != nil {
			return nil, err
		}
		if len(groups) == 0 {
			out.Groups = serviceaccount.MakeGroupNames(ns)
		}
	} else if err := ask(authorizer.AttributesRecord{Resource: "users", Name: name}); err != nil {
		return nil, err
	}
	for _, g := range groups {
		if err := ask(authorizer.AttributesRecord{Resource: "groups", Name: g}); err != nil {
			return nil, err
		}
	}
	const group, version = authenticationv1.GroupName, "v1"
	for key, values := range extra {
		for _, v := range values {
			if err := ask(authorizer.AttributesRecord{APIGroup: group, APIVersion: version, Resource: "userextras", Subresource: key, Name: v}); err != nil {
				return nil, err
			}
		}
	}
	if uid != "" {
		if err := ask(authorizer.AttributesRecord{APIGroup: group, APIVersion: version, Resource: "uids", Name: uid}); err != nil {
			return nil, err
		}
	}
	switch {
	case slices.Contains(out.Groups, user.AllUnauthenticated):
	case name == user.Anonymous:
		out.Groups = append(out.Groups, user.AllUnauthenticated)
	case !slices.Contains(out.Groups, user.AllAuthenticated):
		out.Groups = append(out.Groups, user.AllAuthenticated)
	}
	for header := range h {
		if strings.HasPrefix(header, "Impersonate-") {
			h.Del(header)
		}
	}
	return out, nil
}
