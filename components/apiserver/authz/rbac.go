package authz

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/apiserver/syncgate"
)

// RBAC is the authorizer of the mode RBAC: it allows what roles grant to a user through bindings.
//
// Bindings are indexed by subject, so the cost of finding the bindings of a user does not depend on
// their total number. The rules of a user in a namespace are resolved at the first request and
// cached until any role or binding changes, which is rare. After that a decision takes a few map
// lookups.
//
// https://kubernetes.io/docs/reference/access-authn-authz/rbac/
type RBAC struct {
	clusterRoles    rbaclisters.ClusterRoleLister
	roles           rbaclisters.RoleLister
	clusterBindings cache.Indexer
	bindings        cache.Indexer
	gate            *syncgate.Gate

	// version counts changes of roles and bindings.
	version atomic.Uint64
	// resolved caches rule sets of one version. It is replaced when the version changes or when it
	// becomes too large.
	resolved atomic.Pointer[resolved]
}

// resolved contains the cached rule sets for one version of all roles and bindings.
type resolved struct {
	version uint64
	mu      sync.RWMutex // guards sets
	// sets are the cached rule sets by namespace, user and groups. The empty namespace is for
	// cluster-wide rules.
	sets map[string]*ruleSet
}

// maxResolved is the maximum number of cached rule sets. Each takes a few kilobytes at most,
// because the rules themselves are shared.
const maxResolved = 10_000

// subjectIndex is the name of the informer index that finds bindings by subject.
const subjectIndex = "hyperkube-rbac-subject"

// NewRBAC returns an RBAC authorizer. It requests informers from inf and adds an index to them, so
// they must be started afterwards.
func NewRBAC(inf informers.SharedInformerFactory) (*RBAC, error) {
	in := inf.Rbac().V1()
	r := &RBAC{
		clusterRoles:    in.ClusterRoles().Lister(),
		roles:           in.Roles().Lister(),
		clusterBindings: in.ClusterRoleBindings().Informer().GetIndexer(),
		bindings:        in.RoleBindings().Informer().GetIndexer(),
	}
	r.resolved.Store(&resolved{sets: map[string]*ruleSet{}})
	if err := in.ClusterRoleBindings().Informer().AddIndexers(cache.Indexers{subjectIndex: subjectsOf}); err != nil {
		return nil, fmt.Errorf("indexing cluster role bindings: %w", err)
	}
	if err := in.RoleBindings().Informer().AddIndexers(cache.Indexers{subjectIndex: subjectsOf}); err != nil {
		return nil, fmt.Errorf("indexing role bindings: %w", err)
	}
	// Handlers are called after the store has changed. A caller that reads the version before the
	// store never caches an old state under a new version.
	changed := func() { r.version.Add(1) }
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(_, _ any) { changed() },
		DeleteFunc: func(any) { changed() },
	}
	var synced []cache.DoneChecker
	for _, informer := range []cache.SharedIndexInformer{
		in.ClusterRoles().Informer(), in.Roles().Informer(), in.ClusterRoleBindings().Informer(), in.RoleBindings().Informer(),
	} {
		reg, err := informer.AddEventHandler(handler)
		if err != nil {
			return nil, fmt.Errorf("following roles and bindings: %w", err)
		}
		synced = append(synced, reg.HasSyncedChecker())
	}
	r.gate = syncgate.NewGate(synced...)
	return r, nil
}

// subjectsOf returns the values of a binding in subjectIndex: the namespace of a RoleBinding (empty
// for a ClusterRoleBinding), and the result of subjectValue for each subject.
func subjectsOf(obj any) ([]string, error) {
	var subjects []rbacv1.Subject
	var namespace string
	switch b := obj.(type) {
	case *rbacv1.ClusterRoleBinding:
		subjects = b.Subjects
	case *rbacv1.RoleBinding:
		subjects, namespace = b.Subjects, b.Namespace
	default:
		return nil, fmt.Errorf("a binding of type %T", obj)
	}
	var values []string
	for i := range subjects {
		if v := subjectValue(&subjects[i], namespace); v != "" {
			values = append(values, namespace+"\x00"+v)
		}
	}
	return values, nil
}

// subjectValue returns "u:NAME" for a user or service account and "g:NAME" for a group, or "" for a subject of
// another kind or a service account without a namespace. namespace is that of a service account that names none.
func subjectValue(s *rbacv1.Subject, namespace string) string {
	switch s.Kind {
	case rbacv1.UserKind:
		return "u:" + s.Name
	case rbacv1.GroupKind:
		return "g:" + s.Name
	case rbacv1.ServiceAccountKind:
		if s.Namespace != "" {
			namespace = s.Namespace
		}
		if namespace == "" {
			return ""
		}
		return "u:" + serviceaccount.MakeUsername(namespace, s.Name)
	}
	return ""
}

// Authorize implements authorizer.UnconditionalAuthorizer. It waits until roles and bindings are loaded. It allows
// what a ClusterRoleBinding, or a RoleBinding of the request's namespace, grants. It has no opinion about other
// requests; it never denies.
func (r *RBAC) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if err := r.gate.Wait(ctx); err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	u := a.GetUser()
	everywhere := r.rules(u, "")
	if reason, ok := everywhere.allows(a); ok {
		return authorizer.DecisionAllow, reason, nil
	}
	errs := everywhere.errs
	if namespace := a.GetNamespace(); namespace != "" {
		here := r.rules(u, namespace)
		if reason, ok := here.allows(a); ok {
			return authorizer.DecisionAllow, reason, nil
		}
		errs = append(slices.Clip(errs), here.errs...)
	}
	if len(errs) > 0 {
		return authorizer.DecisionNoOpinion, fmt.Sprintf("RBAC: %v", utilerrors.NewAggregate(errs)), nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// rules returns the rules that the RoleBindings of a namespace grant to u, or the ClusterRoleBindings if namespace is
// empty. The result is shared and cached until a role or binding changes.
func (r *RBAC) rules(u user.Info, namespace string) *ruleSet {
	// Names of users and groups come from clients and may contain any byte. Length prefixes make
	// the keys of different users distinct.
	var buf [256]byte
	key := append(append(buf[:0], namespace...), 0)
	key = append(binary.AppendUvarint(key, uint64(len(u.GetName()))), u.GetName()...)
	for _, g := range u.GetGroups() {
		key = append(binary.AppendUvarint(key, uint64(len(g))), g...)
	}
	version := r.version.Load()
	known := r.resolved.Load()
	for known.version < version {
		fresh := &resolved{version: version, sets: map[string]*ruleSet{}}
		if r.resolved.CompareAndSwap(known, fresh) {
			known = fresh
			break
		}
		known = r.resolved.Load()
	}
	known.mu.RLock()
	set := known.sets[string(key)]
	known.mu.RUnlock()
	if set != nil {
		return set
	}
	set = r.resolve(u, namespace)
	known.mu.Lock()
	defer known.mu.Unlock()
	if len(known.sets) >= maxResolved {
		clear(known.sets)
	}
	known.sets[string(key)] = set
	return set
}

// resolve computes the rules that the method rules returns and caches. It reads roles and bindings from the
// informers. A binding whose role does not exist adds an error to the result.
func (r *RBAC) resolve(u user.Info, namespace string) *ruleSet {
	set := &ruleSet{}
	values := make([]string, 0, 1+len(u.GetGroups()))
	values = append(values, "u:"+u.GetName())
	for _, g := range u.GetGroups() {
		values = append(values, "g:"+g)
	}
	indexer := r.clusterBindings
	if namespace != "" {
		indexer = r.bindings
	}
	seen := map[any]bool{}
	for _, v := range values {
		// The index exists, so there is no error.
		found, _ := indexer.ByIndex(subjectIndex, namespace+"\x00"+v)
		for _, obj := range found {
			if seen[obj] {
				continue
			}
			seen[obj] = true
			switch b := obj.(type) {
			case *rbacv1.ClusterRoleBinding:
				r.grant(set, anyBinding{"ClusterRoleBinding", b.Name, "", &b.RoleRef, b.Subjects}, v)
			case *rbacv1.RoleBinding:
				r.grant(set, anyBinding{"RoleBinding", b.Name + "/" + b.Namespace, b.Namespace, &b.RoleRef, b.Subjects}, v)
			}
		}
	}
	return set
}

// anyBinding is a RoleBinding or a ClusterRoleBinding. kind and name occur in the reasons of
// decisions. The namespace of a ClusterRoleBinding is empty.
type anyBinding struct {
	kind, name, namespace string
	role                  *rbacv1.RoleRef
	subjects              []rbacv1.Subject
}

// grant adds to set the rules that the binding b grants to one of its subjects. value identifies the subject as in
// subjectIndex, for example "u:NAME". If the role of the binding does not exist, grant adds an error to set instead.
func (r *RBAC) grant(set *ruleSet, b anyBinding, value string) {
	rules, err := r.RoleRules(b.role, b.namespace)
	if err != nil {
		set.errs = append(set.errs, err)
		return
	}
	var who string
	for i := range b.subjects {
		if s := &b.subjects[i]; subjectValue(s, b.namespace) == value {
			who = fmt.Sprintf("%s %q", s.Kind, s.Name)
			if s.Kind == rbacv1.ServiceAccountKind {
				ns := s.Namespace
				if ns == "" {
					ns = b.namespace
				}
				who = fmt.Sprintf("%s %q", s.Kind, s.Name+"/"+ns)
			}
			break
		}
	}
	set.add(rules, fmt.Sprintf("RBAC: allowed by %s %q of %s %q to %s", b.kind, b.name, b.role.Kind, b.role.Name, who))
}

// RoleRules returns the rules of the role ref from the informers. They must not be modified.
// namespace is that of the binding, empty for a ClusterRoleBinding. It returns an error if the role
// does not exist or the reference is invalid.
func (r *RBAC) RoleRules(ref *rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	switch ref.Kind {
	case "ClusterRole":
		role, err := r.clusterRoles.Get(ref.Name)
		if err != nil {
			return nil, err
		}
		return role.Rules, nil
	case "Role":
		if namespace == "" {
			return nil, apierrors.NewNotFound(rbacv1.Resource("role"), ref.Name)
		}
		role, err := r.roles.Roles(namespace).Get(ref.Name)
		if err != nil {
			return nil, err
		}
		return role.Rules, nil
	}
	return nil, fmt.Errorf("unsupported role reference kind: %q", ref.Kind)
}

// PolicyRules returns all rules that u has cluster-wide and in the namespace, unless that is empty. The error names
// roles that bindings refer to but that do not exist; the rules are valid nevertheless. They must not be modified.
func (r *RBAC) PolicyRules(ctx context.Context, u user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	if err := r.gate.Wait(ctx); err != nil {
		return nil, err
	}
	sets := []*ruleSet{r.rules(u, "")}
	if namespace != "" {
		sets = append(sets, r.rules(u, namespace))
	}
	var rules []rbacv1.PolicyRule
	var errs []error
	for _, s := range sets {
		for _, g := range s.all {
			rules = append(rules, *g.rule)
		}
		errs = append(errs, s.errs...)
	}
	return rules, utilerrors.NewAggregate(errs)
}

// RulesFor implements authorizer.RuleResolver. It returns the rules of PolicyRules, divided into those for resources
// and those for other paths. The list is complete unless there is an error.
func (r *RBAC) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	rules, err := r.PolicyRules(ctx, u, namespace)
	var res []authorizer.ResourceRuleInfo
	var nonRes []authorizer.NonResourceRuleInfo
	for i := range rules {
		rule := &rules[i]
		if len(rule.Resources) > 0 {
			res = append(res, &authorizer.DefaultResourceRuleInfo{
				Verbs: rule.Verbs, APIGroups: rule.APIGroups, Resources: rule.Resources, ResourceNames: rule.ResourceNames,
			})
		}
		if len(rule.NonResourceURLs) > 0 {
			nonRes = append(nonRes, &authorizer.DefaultNonResourceRuleInfo{Verbs: rule.Verbs, NonResourceURLs: rule.NonResourceURLs})
		}
	}
	return res, nonRes, false, err
}

// describe returns a rule as text for error messages, as in upstream.
func describe(r *rbacv1.PolicyRule) string {
	var parts []string
	part := func(name string, list []string) {
		if len(list) > 0 {
			parts = append(parts, fmt.Sprintf("%s:%q", name, list))
		}
	}
	part("APIGroups", r.APIGroups)
	part("Resources", r.Resources)
	part("NonResourceURLs", r.NonResourceURLs)
	part("ResourceNames", r.ResourceNames)
	part("Verbs", r.Verbs)
	return "{" + strings.Join(parts, ", ") + "}"
}
