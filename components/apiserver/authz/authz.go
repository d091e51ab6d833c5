// Package authz tells what a user may do: superusers, then the modes of
// --authorization-mode in their order, of which the first that has an opinion
// decides.
//
// https://kubernetes.io/docs/reference/access-authn-authz/authorization/
package authz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// Modes of authorization.
const (
	ModeAlwaysAllow = "AlwaysAllow"
	ModeAlwaysDeny  = "AlwaysDeny"
	ModeNode        = "Node"
	ModeRBAC        = "RBAC"
	ModeWebhook     = "Webhook"
)

// Config says who decides.
type Config struct {
	// Modes in the order in which they are asked; nil means Node and RBAC.
	Modes []string
	// Informers and Kube are needed for Node and RBAC. Kube must be a
	// superuser's.
	Informers informers.SharedInformerFactory
	Kube      kubernetes.Interface
	// Webhook is asked for the mode of that name.
	Webhook authorizer.Authorizer
}

// Authorizer decides. Its methods are safe for several goroutines.
type Authorizer struct {
	// chain is asked in order.
	chain []authorizer.Authorizer
	rbac  *RBAC
	node  *nodeAuthorizer
}

var (
	_ authorizer.Authorizer   = (*Authorizer)(nil)
	_ authorizer.RuleResolver = (*Authorizer)(nil)
)

// New makes an authorizer and registers with the informers that it needs,
// which must not have been started.
func New(cfg Config) (*Authorizer, error) {
	modes := cfg.Modes
	if modes == nil {
		modes = []string{ModeNode, ModeRBAC}
	}
	if len(modes) == 0 {
		return nil, errors.New("at least one authorization mode must be given")
	}
	a := &Authorizer{}
	for i, mode := range modes {
		if slices.Contains(modes[:i], mode) {
			return nil, fmt.Errorf("authorization mode %s is given twice", mode)
		}
		if (mode == ModeNode || mode == ModeRBAC) && (cfg.Informers == nil || cfg.Kube == nil) {
			return nil, fmt.Errorf("authorization mode %s takes informers and a client", mode)
		}
		switch mode {
		case ModeAlwaysAllow:
			a.chain = append(a.chain, always(authorizer.DecisionAllow, ""))
		case ModeAlwaysDeny:
			a.chain = append(a.chain, always(authorizer.DecisionNoOpinion, "Everything is forbidden."))
		case ModeNode:
			node, err := newNodeAuthorizer(cfg.Informers, cfg.Kube)
			if err != nil {
				return nil, err
			}
			a.node = node
			a.chain = append(a.chain, authorizer.AuthorizerFunc(node.authorize))
		case ModeRBAC:
			rbac, err := NewRBAC(cfg.Informers)
			if err != nil {
				return nil, err
			}
			a.rbac = rbac
			a.chain = append(a.chain, authorizer.AuthorizerFunc(rbac.Authorize))
		case ModeWebhook:
			if cfg.Webhook == nil {
				return nil, errors.New("authorization mode Webhook takes a configuration")
			}
			a.chain = append(a.chain, cfg.Webhook)
		default:
			return nil, fmt.Errorf("%q is not a valid authorization mode", mode)
		}
	}
	return a, nil
}

func always(d authorizer.Decision, reason string) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return d, reason, nil
	})
}

// IsSuperuser tells whether u may do everything, whatever is configured.
func IsSuperuser(u user.Info) bool {
	return u != nil && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

// Authorize decides about one request.
func (a *Authorizer) Authorize(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	u := attrs.GetUser()
	if u == nil {
		return authorizer.DecisionNoOpinion, "Error", errors.New("no user on request")
	}
	if IsSuperuser(u) {
		return authorizer.DecisionAllow, "", nil
	}
	var reasons []string
	var errs []error
	for _, next := range a.chain {
		decision, reason, err := next.Authorize(ctx, attrs)
		if decision != authorizer.DecisionNoOpinion {
			return decision, reason, err
		}
		if err != nil {
			errs = append(errs, err)
		}
		if reason != "" {
			reasons = append(reasons, reason)
		}
	}
	return authorizer.DecisionNoOpinion, strings.Join(reasons, "\n"), utilerrors.NewAggregate(errs)
}

// ConditionsAwareAuthorize is Authorize; there are no conditions.
func (a *Authorizer) ConditionsAwareAuthorize(ctx context.Context, attrs authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(a.Authorize(ctx, attrs))
}

// EvaluateConditions fails; there are no conditions.
func (a *Authorizer) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// RulesFor lists what u may do in a namespace, for SelfSubjectRulesReview. The
// list is incomplete (true) where a mode cannot list.
func (a *Authorizer) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if IsSuperuser(u) {
		all := []string{"*"}
		return []authorizer.ResourceRuleInfo{&authorizer.DefaultResourceRuleInfo{Verbs: all, APIGroups: all, Resources: all}},
			[]authorizer.NonResourceRuleInfo{&authorizer.DefaultNonResourceRuleInfo{Verbs: all, NonResourceURLs: all}}, false, nil
	}
	if a.rbac == nil {
		return nil, nil, true, errors.New("no authorization mode that is on can list rules")
	}
	res, nonRes, incomplete, err := a.rbac.RulesFor(ctx, u, namespace)
	if a.node != nil && isNode(u) {
		incomplete = true
		err = utilerrors.NewAggregate([]error{err, errors.New("node authorizer does not support user rule resolution")})
	}
	return res, nonRes, incomplete, err
}

// Ready tells whether all that the authorizer decides by is known. Requests
// that come before wait for it.
func (a *Authorizer) Ready() bool {
	return (a.rbac == nil || a.rbac.gate.Ready()) && (a.node == nil || a.node.gate.Ready())
}
