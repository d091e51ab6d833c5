package filters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"hyperkube/components/apiserver/metrics"
	"hyperkube/components/apiserver/rest"
)

// impersonates reports whether the request has impersonation headers.
func impersonates(h http.Header) bool {
	for header := range h {
		if strings.HasPrefix(header, "Impersonate-") {
			return true
		}
	}
	return false
}

// serveAs handles a request with impersonation headers: it continues as the impersonated user if the sender is
// allowed to impersonate it, either for this kind of request in one of the constrained modes, or for all requests.
// Otherwise it responds with 403, or with 400 if the headers contain no user name.
//
// https://kubernetes.io/docs/reference/access-authn-authz/user-impersonation/ https://kep.k8s.io/5284
func (c *Chain) serveAs(w http.ResponseWriter, req *http.Request) {
	ctx := req.Context()
	wanted, err := impersonatedUser(req.Header)
	if err != nil {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		c.cfg.Error(w, req, err)
		return
	}
	if wanted == nil {
		c.cfg.Metrics.ObserveStage(metrics.Impersonation, 0)
		c.serveEffectiveUser(w, req)
		return
	}
	info, _ := apirequest.RequestInfoFrom(ctx)
	sender, _ := apirequest.UserFrom(ctx)
	began := time.Now()
	var first error
	for _, m := range modes {
		if m.applies != nil && !m.applies(wanted, sender) {
			continue
		}
		as, err := c.impersonate(ctx, m, attributesOf(info, sender), wanted)
		if err == nil {
			took := time.Since(began)
			c.cfg.Metrics.Impersonated(m.label(), true, took)
			c.cfg.Metrics.ObserveStage(metrics.Impersonation, took)
			audit.LogImpersonatedUser(ctx, as, m.verb())
			c.serveEffectiveUser(w, req.WithContext(apirequest.WithUser(ctx, as)))
			return
		}
		if first == nil {
			first = err
		}
	}
	c.cfg.Metrics.Impersonated("", false, time.Since(began))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	c.cfg.Error(w, req, first)
}

// mode is an impersonation mode: a set of permissions with which a sender may impersonate certain
// users. applies reports whether the mode can be used for the user wanted; nil means always. The
// name of the unconstrained mode is empty.
type mode struct {
	name    string
	applies func(wanted *user.DefaultInfo, sender user.Info) bool
}

// modes are the impersonation modes in the order in which they are tried, from the narrowest to the
// widest.
var modes = []mode{
	{"associated-node", func(wanted *user.DefaultInfo, sender user.Info) bool {
		node, ok := nodeOf(wanted.Name)
		on := sender.GetExtra()[serviceaccount.NodeNameKey]
		return ok && nameOnly(wanted) && isServiceAccount(sender.GetName()) && len(on) == 1 && on[0] == node
	}},
	{"arbitrary-node", func(wanted *user.DefaultInfo, _ user.Info) bool {
		_, ok := nodeOf(wanted.Name)
		return ok && nameOnly(wanted)
	}},
	{"serviceaccount", func(wanted *user.DefaultInfo, _ user.Info) bool {
		return nameOnly(wanted) && isServiceAccount(wanted.Name)
	}},
	{"user-info", func(wanted *user.DefaultInfo, _ user.Info) bool {
		_, node := nodeOf(wanted.Name)
		return !node && !isServiceAccount(wanted.Name)
	}},
	{},
}

// nameOnly reports whether the sender wants to impersonate only a name, without UID, groups and
// extra values.
func nameOnly(u *user.DefaultInfo) bool {
	return u.UID == "" && len(u.Groups) == 0 && len(u.Extra) == 0
}

// isServiceAccount reports whether name is the user name of a service account, system:serviceaccount:NAMESPACE:NAME.
func isServiceAccount(name string) bool {
	_, _, err := serviceaccount.SplitUsername(name)
	return err == nil
}

// nodeOf returns the node name in a user name of the form system:node:NAME. It returns false if name does not have
// this form.
func nodeOf(name string) (string, bool) {
	node, ok := strings.CutPrefix(name, "system:node:")
	return node, ok && len(apivalidation.NameIsDNSSubdomain(node, false)) == 0
}

// verb returns the verb, impersonate:MODE, for which the sender needs permission on each attribute of the impersonated
// user in a constrained mode. It returns "" for the unconstrained mode.
func (m mode) verb() string {
	if m.name == "" {
		return ""
	}
	return "impersonate:" + m.name
}

// label returns the value of the metric label for the mode.
func (m mode) label() string { return cmp.Or(m.name, "legacy") }

// impersonatedUser returns the user in the impersonation headers and removes the headers, so that no later handler
// sees them. It returns nil if the headers contain no attributes at all, and a BadRequest error for attributes
// without a user name.
func impersonatedUser(h http.Header) (*user.DefaultInfo, error) {
	u := &user.DefaultInfo{
		Name: h.Get(authenticationv1.ImpersonateUserHeader), UID: h.Get(authenticationv1.ImpersonateUIDHeader),
		Groups: slices.Clone(h[authenticationv1.ImpersonateGroupHeader]),
	}
	for header, values := range h {
		key, ok := strings.CutPrefix(header, authenticationv1.ImpersonateUserExtraHeaderPrefix)
		if !ok {
			continue
		}
		key = strings.ToLower(key)
		if unescaped, err := url.PathUnescape(key); err == nil {
			key = unescaped
		}
		if u.Extra == nil {
			u.Extra = map[string][]string{}
		}
		u.Extra[key] = append(u.Extra[key], values...)
	}
	if u.Name == "" {
		if !nameOnly(u) {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("requested %#v without impersonating a user name", u))
		}
		return nil, nil
	}
	for header := range h {
		if strings.HasPrefix(header, "Impersonate-") {
			h.Del(header)
		}
	}
	return u, nil
}

// impersonate returns the user wanted, with the groups that it has implicitly, if the sender of the request has the
// permissions for all its attributes that the mode requires. In constrained modes the sender also needs permission
// for the request itself. Otherwise it returns a Forbidden error.
func (c *Chain) impersonate(ctx context.Context, m mode, request *authorizer.AttributesRecord, wanted *user.DefaultInfo) (*user.DefaultInfo, error) {
	sender := request.User
	if m.name == "associated-node" {
		// The decision must apply to all nodes, so the node name is removed.
		sender = &user.DefaultInfo{Name: sender.GetName(), UID: sender.GetUID(), Groups: sender.GetGroups(), Extra: map[string][]string{
			"authentication.kubernetes.io/associated-node-keys": slices.Sorted(maps.Keys(sender.GetExtra())),
		}}
	}
	// names is for users and groups, other for the other attributes.
	names := authorizer.AttributesRecord{User: sender, Verb: "impersonate", APIVersion: "v1", ResourceRequest: true}
	if m.name != "" {
		on := *request
		on.User, on.Verb = sender, "impersonate-on:"+m.name+":"+request.Verb
		if err := c.checkPermission(ctx, m, &on); err != nil {
			return nil, err
		}
		names.Verb, names.APIGroup = m.verb(), authenticationv1.GroupName
	}
	other := names
	other.APIGroup = authenticationv1.GroupName
	ask := func(a authorizer.AttributesRecord) error { return c.checkPermission(ctx, m, &a) }
	out := *wanted
	who := names
	who.Resource, who.Name = "users", wanted.Name
	node, isNode := nodeOf(wanted.Name)
	namespace, account, err := serviceaccount.SplitUsername(wanted.Name)
	switch {
	case err == nil:
		who.Resource, who.Namespace, who.Name = "serviceaccounts", namespace, account
		if len(wanted.Groups) == 0 {
			out.Groups = serviceaccount.MakeGroupNames(namespace)
		}
	case isNode && m.name != "":
		who.Resource, who.Name = "nodes", node
		if m.name == "associated-node" {
			who.Name = "*"
		}
		out.Groups = []string{user.NodesGroup}
	}
	if err := ask(who); err != nil {
		return nil, err
	}
	if wanted.UID != "" {
		uid := other
		uid.Resource, uid.Name = "uids", wanted.UID
		if err := ask(uid); err != nil {
			return nil, err
		}
	}
	if err := checkGroups(m, names, wanted.Groups, ask); err != nil {
		return nil, err
	}
	if err := checkExtra(m, other, wanted.Extra, ask); err != nil {
		return nil, err
	}
	switch {
	case slices.Contains(out.Groups, user.AllUnauthenticated):
	case out.Name == user.Anonymous:
		out.Groups = append(slices.Clip(out.Groups), user.AllUnauthenticated)
	case !slices.Contains(out.Groups, user.AllAuthenticated):
		out.Groups = append(slices.Clip(out.Groups), user.AllAuthenticated)
	}
	return &out, nil
}

// checkPermission returns nil if the sender has the permission a, which the mode requires, and a
// Forbidden error otherwise.
func (c *Chain) checkPermission(ctx context.Context, m mode, a *authorizer.AttributesRecord) error {
	began := time.Now()
	err := rest.Allowed(ctx, c.cfg.Authorizer, a)
	c.cfg.Metrics.ImpersonationChecked(m.label(), err == nil, time.Since(began))
	return err
}

// wildcardThreshold is the number of groups, or of extra values, from which on the permission for
// all of them ("*") is checked before that for each. It only applies to constrained modes.
const wildcardThreshold = 4

// checkGroups returns an error unless the sender may impersonate all groups in the mode m. ask checks one permission,
// whose attributes are those of a and the group. Constrained modes never allow the empty group and system:masters. For
// many groups they first check the permission for all groups, see wildcardThreshold.
func checkGroups(m mode, a authorizer.AttributesRecord, groups []string, ask func(authorizer.AttributesRecord) error) error {
	a.Resource = "groups"
	if m.name != "" {
		switch {
		case slices.Contains(groups, ""):
			return rest.Forbidden(&a, "impersonating the empty string group is not allowed")
		case slices.Contains(groups, user.SystemPrivilegedGroup):
			a.Name = user.SystemPrivilegedGroup
			return rest.Forbidden(&a, "impersonating the system:masters group is not allowed")
		}
		if a.Name = "*"; len(groups) >= wildcardThreshold && ask(a) == nil {
			return nil
		}
	}
	for _, a.Name = range groups {
		if err := ask(a); err != nil {
			return err
		}
	}
	return nil
}

// checkExtra returns an error unless the sender may impersonate all extra values in the mode m. ask checks one
// permission, whose attributes are those of a, the key and the value. For many values, constrained modes first check
// the permission for all of them, see wildcardThreshold.
func checkExtra(m mode, a authorizer.AttributesRecord, extra map[string][]string, ask func(authorizer.AttributesRecord) error) error {
	a.Resource = "userextras"
	keys := slices.Sorted(maps.Keys(extra))
	if m.name != "" {
		values := 0
		for _, key := range keys {
			if err := validExtra(key, extra[key]); err != nil {
				return rest.Forbidden(&a, err.Error())
			}
			values += len(extra[key])
		}
		all := a
		if all.Subresource, all.Name = "*", "*"; values >= wildcardThreshold && ask(all) == nil {
			return nil
		}
	}
	for _, a.Subresource = range keys {
		for _, a.Name = range extra[a.Subresource] {
			if err := ask(a); err != nil {
				return err
			}
		}
	}
	return nil
}

// validExtra returns an error if constrained modes do not allow the key or the values of an extra attribute: empty
// ones, and keys that are not lowercase paths with a domain.
func validExtra(key string, values []string) error {
	switch {
	case key == "":
		return errors.New("impersonating the empty string key in extra is not allowed")
	case len(values) == 0:
		return errors.New("impersonating empty values in extra is not allowed")
	case slices.Contains(values, ""):
		return errors.New("impersonating the empty string value in extra is not allowed")
	}
	if err := validation.IsDomainPrefixedPath(field.NewPath("extra", "key"), key).ToAggregate(); err != nil {
		return fmt.Errorf("impersonating an invalid key in extra is not allowed: %w", err)
	}
	if key != strings.ToLower(key) {
		return fmt.Errorf("impersonating a non-lowercase key in extra is not allowed: %q", key)
	}
	return nil
}
