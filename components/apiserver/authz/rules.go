package authz

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// grant is one RBAC rule that a user has, and the reason: the binding and the role from which the user has it.
type grant struct {
	rule *rbacv1.PolicyRule // part of a shared object, must not be modified
	// reason is returned to clients that ask why a request is allowed.
	reason string
}

// ruleSet contains all rules that a user has cluster-wide or in one namespace. It is immutable
// after construction.
type ruleSet struct {
	// byResource contains the grants by each resource that they name: "pods", "pods/log", "*",
	// "*/scale".
	byResource map[string][]grant
	// urls are the grants for non-resource paths.
	urls []grant
	// all contains all grants in the order of their bindings.
	all []grant
	// errs are the errors for roles that do not exist.
	errs []error
}

// add adds rules that a user has to the set. reason is the binding and role from which the user has them. It is called
// only during construction.
func (s *ruleSet) add(rules []rbacv1.PolicyRule, reason string) {
	for i := range rules {
		g := grant{rule: &rules[i], reason: reason}
		s.all = append(s.all, g)
		if len(g.rule.NonResourceURLs) > 0 {
			s.urls = append(s.urls, g)
		}
		for j, r := range g.rule.Resources {
			if slices.Contains(g.rule.Resources[:j], r) {
				continue
			}
			if s.byResource == nil {
				s.byResource = map[string][]grant{}
			}
			s.byResource[r] = append(s.byResource[r], g)
		}
	}
}

// allows reports whether a rule in the set allows the request, and returns the reason of that rule: the binding and
// role.
func (s *ruleSet) allows(a authorizer.Attributes) (string, bool) {
	if !a.IsResourceRequest() {
		return find(s.urls, func(r *rbacv1.PolicyRule) bool { return ruleCoversURL(r, a.GetVerb(), a.GetPath()) })
	}
	if len(s.byResource) == 0 {
		return "", false
	}
	resource, sub := a.GetResource(), a.GetSubresource()
	verb, group, name := a.GetVerb(), a.GetAPIGroup(), a.GetName()
	covers := func(r *rbacv1.PolicyRule) bool {
		return matches(r.Verbs, verb) && matches(r.APIGroups, group) &&
			(len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, name))
	}
	if sub == "" {
		if reason, ok := find(s.byResource[resource], covers); ok {
			return reason, true
		}
	} else {
		var buf [96]byte
		key := append(append(append(buf[:0], resource...), '/'), sub...)
		if reason, ok := find(s.byResource[string(key)], covers); ok {
			return reason, true
		}
		key = append(append(buf[:0], "*/"...), sub...)
		if reason, ok := find(s.byResource[string(key)], covers); ok {
			return reason, true
		}
	}
	return find(s.byResource["*"], covers)
}

// find returns the reason of the first grant whose rule covers the request, and whether there is
// one.
func find(grants []grant, covers func(*rbacv1.PolicyRule) bool) (string, bool) {
	for i := range grants {
		if covers(grants[i].rule) {
			return grants[i].reason, true
		}
	}
	return "", false
}

// matches reports whether list contains s or "*".
func matches(list []string, s string) bool {
	for _, e := range list {
		if e == s || e == "*" {
			return true
		}
	}
	return false
}

// ruleCoversURL reports whether a rule allows the verb on a non-resource path. A URL in the rule that ends with "*"
// matches all paths with the prefix.
func ruleCoversURL(r *rbacv1.PolicyRule, verb, path string) bool {
	if !matches(r.Verbs, verb) {
		return false
	}
	for _, u := range r.NonResourceURLs {
		if u == "*" || u == path {
			return true
		}
		if prefix := strings.TrimRight(u, "*"); len(prefix) < len(u) && strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}
