// Package clusterroleaggregation fills in the rules of ClusterRoles that have an aggregation rule,
// from the ClusterRoles that the rule selects.
//
// https://kubernetes.io/docs/reference/access-authn-authz/rbac/#aggregated-clusterroles
package clusterroleaggregation

import (
	"context"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	applyrbacv1 "k8s.io/client-go/applyconfigurations/rbac/v1"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"

	"hyperkube/components/controllers/internal/control"
)

// fieldManager is the field manager with which the rules are applied.
const fieldManager = "clusterrole-aggregation-controller"

// Controller reconciles aggregated ClusterRoles: those with an aggregation rule. Use New to create it.
type Controller struct {
	*control.Loop
	env   control.Env
	roles rbaclisters.ClusterRoleLister
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. The caller then
// starts the informers and calls Run.
func New(env control.Env) (*Controller, error) {
	env = env.Defaulted()
	roles := env.Informers.Rbac().V1().ClusterRoles()
	c := &Controller{env: env, roles: roles.Lister()}
	c.Loop = control.NewLoop(env, "clusterroleaggregation", c.sync)
	return c, c.Watch(roles.Informer(), control.AnyEvent(func(*rbacv1.ClusterRole) {
		// Any aggregated role may select the changed one.
		all, err := c.roles.List(labels.Everything())
		if err != nil {
			return
		}
		for _, r := range all {
			if r.AggregationRule != nil {
				c.Add(r.Name)
			}
		}
	}))
}

// sync sets the rules of a ClusterRole with an aggregation rule to the union of the rules of the ClusterRoles that it
// selects. Rules that a user has written are replaced. Other ClusterRoles are not changed.
func (c *Controller) sync(ctx context.Context, name string) error {
	role, err := c.roles.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || role.AggregationRule == nil {
		return err
	}
	var rules []rbacv1.PolicyRule
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return err
		}
		selected, err := c.roles.List(selector)
		if err != nil {
			return err
		}
		slices.SortFunc(selected, func(a, b *rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) })
		for _, s := range selected {
			if s.Name == name {
				continue
			}
			for _, rule := range s.Rules {
				if !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(r, rule) }) {
					rules = append(rules, *rule.DeepCopy())
				}
			}
		}
	}
	if equality.Semantic.DeepEqual(rules, role.Rules) {
		return nil
	}
	// Force the apply: manually written rules are replaced, as documented.
	apply := applyrbacv1.ClusterRole(name)
	for _, r := range rules {
		apply.WithRules(applyrbacv1.PolicyRule().
			WithVerbs(r.Verbs...).WithAPIGroups(r.APIGroups...).WithResources(r.Resources...).
			WithResourceNames(r.ResourceNames...).WithNonResourceURLs(r.NonResourceURLs...))
	}
	_, err = c.env.Kube.RbacV1().ClusterRoles().Apply(ctx, apply, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	return err
}
