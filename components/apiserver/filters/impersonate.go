package filters

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

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

	"hyperkube/components/apiserver/rest"
)

// impersonates tells whether a request is to be treated as that of somebody
// else than its sender.
func impersonates(h http.Header) bool {
	for header := range h {
		if strings.HasPrefix(header, "Impersonate-") {
			return true
		}
	}
	return false
}

// serveAs goes on with a request that is to be treated as that of somebody else,
// whom the sender must be allowed to be: for requests such as this one in one of
// the modes, or for all.
//
// https://kubernetes.io/docs/reference/access-authn-authz/user-impersonation/
// https://kep.k8s.io/5284
func (c *Chain) serveAs(w http.ResponseWriter, req *http.Request) {
	ctx := req.Context()
	wanted, err := wantedUser(req.Header)
	if err != nil {
		c.cfg.Error(w, req, err)
		return
	}
	if wanted == nil {
		c.serveKnown(w, req)
		return
	}
	info, _ := apirequest.RequestInfoFrom(ctx)
	sender, _ := apirequest.UserFrom(ctx)
	var first error
	for _, m := range modes {
		if m.applies != nil && !m.applies(wanted, sender) {
			continue
		}
		as, err := c.impersonate(ctx, m, attributesOf(info, sender), wanted)
		if err == nil {
			audit.LogImpersonatedUser(ctx, as, m.verb())
			c.serveKnown(w, req.WithContext(apirequest.WithUser(ctx, as)))
			return
		}
		if first == nil {
			first = err
		}
	}
	c.cfg.Error(w, req, first)
}

// mode is a way to be allowed to be somebody else. Its name is empty for the
// one that allows that for all requests.
type mode struct {
	name    string
	applies func(wanted *user.DefaultInfo, sender user.Info) bool
}

// modes are the narrowest first.
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

func nameOnly(u *user.DefaultInfo) bool {
	return u.UID == "" && len(u.Groups) == 0 && len(u.Extra) == 0
}

func isServiceAccount(name string) bool {
	_, _, err := serviceaccount.SplitUsername(name)
	return err == nil
}

// nodeOf is the name of the node whose user's name is given.
func nodeOf(name string) (string, bool) {
	node, ok := strings.CutPrefix(name, "system:node:")
	return node, ok && len(apivalidation.NameIsDNSSubdomain(node, false)) == 0
}

// verb is what the sender must be allowed to do with each part of the user.
func (m mode) verb() string {
	if m.name == "" {
		return ""
	}
	return "impersonate:" + m.name
}

// wantedUser is as whom a request is to be treated, nil as its sender. The
// headers are taken away: nobody else is to see them.
func wantedUser(h http.Header) (*user.DefaultInfo, error) {
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

// impersonate returns the user, if the sender may be all of it in a mode.
func (c *Chain) impersonate(ctx context.Context, m mode, request *authorizer.AttributesRecord, wanted *user.DefaultInfo) (*user.DefaultInfo, error) {
	sender := request.User
	if m.name == "associated-node" {
		// Whatever node it is: the decision must hold for all of them.
		sender = &user.DefaultInfo{Name: sender.GetName(), UID: sender.GetUID(), Groups: sender.GetGroups(), Extra: map[string][]string{
			"authentication.kubernetes.io/associated-node-keys": slices.Sorted(maps.Keys(sender.GetExtra())),
		}}
	}
	verb := "impersonate"
	names := authorizer.AttributesRecord{APIVersion: "v1"} // of users and groups
	if m.name != "" {
		on := *request
		on.User, on.Verb = sender, "impersonate-on:"+m.name+":"+request.Verb
		if err := rest.Allowed(ctx, c.cfg.Authorizer, &on); err != nil {
			return nil, err
		}
		verb, names.APIGroup = m.verb(), authenticationv1.GroupName
	}
	ask := func(a authorizer.AttributesRecord) error {
		a.User, a.Verb, a.ResourceRequest = sender, verb, true
		return rest.Allowed(ctx, c.cfg.Authorizer, &a)
	}
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
	other := authorizer.AttributesRecord{APIGroup: authenticationv1.GroupName, APIVersion: "v1"}
	if wanted.UID != "" {
		other.Resource, other.Name = "uids", wanted.UID
		if err := ask(other); err != nil {
			return nil, err
		}
	}
	if m.name != "" {
		if err := strict(wanted); err != nil {
			names.User, names.Verb, names.Resource, names.ResourceRequest = sender, verb, "groups", true
			return nil, rest.Forbidden(&names, err.Error())
		}
	}
	for _, g := range wanted.Groups {
		group := names
		group.Resource, group.Name = "groups", g
		if err := ask(group); err != nil {
			return nil, err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(wanted.Extra)) {
		other.Resource, other.Subresource = "userextras", key
		for _, other.Name = range wanted.Extra[key] {
			if err := ask(other); err != nil {
				return nil, err
			}
		}
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

// strict refuses what nobody can be who is not allowed to be anybody.
func strict(wanted *user.DefaultInfo) error {
	switch {
	case slices.Contains(wanted.Groups, ""):
		return errors.New("impersonating the empty string group is not allowed")
	case slices.Contains(wanted.Groups, user.SystemPrivilegedGroup):
		return errors.New("impersonating the system:masters group is not allowed")
	}
	for key, values := range wanted.Extra {
		if key == "" {
			return errors.New("impersonating the empty string key in extra is not allowed")
		}
		if err := validation.IsDomainPrefixedPath(field.NewPath("extra", "key"), key).ToAggregate(); err != nil {
			return fmt.Errorf("impersonating an invalid key in extra is not allowed: %w", err)
		}
		if key != strings.ToLower(key) {
			return fmt.Errorf("impersonating a non-lowercase key in extra is not allowed: %q", key)
		}
		if len(values) == 0 {
			return errors.New("impersonating empty values in extra is not allowed")
		}
		if slices.Contains(values, "") {
			return errors.New("impersonating the empty string value in extra is not allowed")
		}
	}
	return nil
}
