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
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
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
	ModeABAC        = "ABAC"
)

// Config says who decides.
type Config struct {
	// Modes in the order in which they are asked; nil means Node and RBAC.
	Modes []string
	// Informers and Kube are needed for Node and RBAC. Kube must be a
	// superuser's.
	Informers informers.SharedInformerFactory
	Kube      kubernetes.Interface
	// Pods tells of pods; nil means an informer, which keeps all of them
	// decoded.
	Pods Pods
	// Webhook is for the mode of that name.
	Webhook Webhook
	// PolicyFile has the policies of the mode ABAC.
	PolicyFile string
	// ConfigFile is an AuthorizationConfiguration instead of all that, with
	// the same modes and any number of webhooks: --authorization-config. It
	// is read again when it changes.
	ConfigFile string
	// Log tells of that; it may be nil without a file.
	Log *slog.Logger
}

// Pods tells of pods and what becomes of them.
type Pods interface {
	// Follow calls set for all pods that are on a node and when one of them
	// changes, removed when a pod is gone, and listed once all that there
	// were have been told. It may begin again: those that is tells false of
	// are gone then. One goroutine makes the calls, and none of them keeps a
	// pod. It returns when ctx ends.
	Follow(ctx context.Context, set func(*corev1.Pod), removed func(namespace, name string), listed func(is func(namespace, name string) bool)) error
}

// Authorizer decides. Its methods are safe for several goroutines.
type Authorizer struct {
	cfg Config
	// chain is asked in order. It is replaced when the file changes.
	chain atomic.Pointer[[]link]
	// What is on, wherever it is in the chain; else nil.
	rbac *RBAC
	node *nodeAuthorizer
	abac abac
	// compiler of match conditions is made when it is first needed.
	compiler func() authorizationcel.Compiler
	// read is the file's content that was last tried; only New and Run use
	// it.
	read []byte
}

var (
	_ authorizer.Authorizer   = (*Authorizer)(nil)
	_ authorizer.RuleResolver = (*Authorizer)(nil)
)

// New makes an authorizer and registers with the informers that it needs,
// which must not have been started.
func New(cfg Config) (*Authorizer, error) {
	a := &Authorizer{cfg: cfg, compiler: sync.OnceValue(authorizationcel.NewDefaultCompiler)}
	var modes *apiserver.AuthorizationConfiguration
	if cfg.ConfigFile != "" {
		if cfg.Modes != nil {
			return nil, errors.New("--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined")
		}
		if cfg.Log == nil {
			return nil, errors.New("following the authorization configuration takes a log")
		}
		var err error
		if a.read, err = os.ReadFile(cfg.ConfigFile); err != nil {
			return nil, fmt.Errorf("reading the authorization configuration: %w", err)
		}
		if modes, err = parse(a.read, a.compiler()); err != nil {
			return nil, err
		}
	} else {
		names := cfg.Modes
		if names == nil {
			names = []string{ModeNode, ModeRBAC}
		}
		if len(names) == 0 {
			return nil, errors.New("at least one authorization mode must be given")
		}
		for i, mode := range names {
			if slices.Contains(names[:i], mode) {
				return nil, fmt.Errorf("authorization mode %s is given twice", mode)
			}
		}
		modes = ofFlags(names, cfg.Webhook)
	}
	for _, m := range modes.Authorizers {
		if err := a.prepare(string(m.Type)); err != nil {
			return nil, err
		}
	}
	chain, err := a.build(modes)
	if err != nil {
		return nil, err
	}
	a.chain.Store(&chain)
	return a, nil
}

// prepare makes what a mode decides by, once.
func (a *Authorizer) prepare(mode string) error {
	if (mode == ModeNode || mode == ModeRBAC) && (a.cfg.Informers == nil || a.cfg.Kube == nil) {
		return fmt.Errorf("authorization mode %s takes informers and a client", mode)
	}
	var err error
	switch mode {
	case ModeNode:
		a.node, err = newNodeAuthorizer(a.cfg.Informers, a.cfg.Kube, a.cfg.Pods)
	case ModeRBAC:
		a.rbac, err = NewRBAC(a.cfg.Informers)
	case ModeABAC:
		if a.abac, err = loadABAC(a.cfg.PolicyFile); err == nil && a.abac == nil {
			a.abac = abac{} // the file is there and has no policy
		}
	}
	return err
}

// link is one authorizer of the chain, by its name in the configuration.
type link struct {
	authorizer.UnconditionalAuthorizer
	name string
}

// always decides the same about everything.
type always struct {
	decision authorizer.Decision
	reason   string
}

// Authorize implements authorizer.UnconditionalAuthorizer.
func (a always) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return a.decision, a.reason, nil
}

// RulesFor implements authorizer.RuleResolver.
func (a always) RulesFor(context.Context, user.Info, string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if a.decision != authorizer.DecisionAllow {
		return nil, nil, false, nil
	}
	res, urls := allRules()
	return res, urls, false, nil
}

func allRules() ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo) {
	all := []string{"*"}
	return []authorizer.ResourceRuleInfo{&authorizer.DefaultResourceRuleInfo{Verbs: all, APIGroups: all, Resources: all}},
		[]authorizer.NonResourceRuleInfo{&authorizer.DefaultNonResourceRuleInfo{Verbs: all, NonResourceURLs: all}}
}

// isSuperuser tells whether u may do everything, whatever is configured.
func isSuperuser(u user.Info) bool {
	return u != nil && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

// Authorize decides about one request.
func (a *Authorizer) Authorize(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	u := attrs.GetUser()
	if u == nil {
		return authorizer.DecisionNoOpinion, "Error", errors.New("no user on request")
	}
	if isSuperuser(u) {
		return authorizer.DecisionAllow, "", nil
	}
	var reasons []string
	var errs []error
	for _, next := range *a.chain.Load() {
		decision, reason, err := next.Authorize(ctx, attrs)
		if decision != authorizer.DecisionNoOpinion {
			return decision, reason, err
		}
		if err != nil {
			errs = append(errs, err)
		}
		if reason != "" {
			reasons = append(reasons, next.name+": "+reason)
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
	var res []authorizer.ResourceRuleInfo
	var urls []authorizer.NonResourceRuleInfo
	incomplete := false
	var errs []error
	for _, next := range *a.chain.Load() {
		resolver, ok := next.UnconditionalAuthorizer.(authorizer.RuleResolver)
		if !ok {
			continue
		}
		r, n, some, err := resolver.RulesFor(ctx, u, namespace)
		res, urls = append(res, r...), append(urls, n...)
		incomplete = incomplete || some
		if err != nil {
			errs = append(errs, err)
		}
	}
	return res, urls, incomplete, utilerrors.NewAggregate(errs)
}

// Ready tells whether all that the authorizer decides by is known. Requests
// that come before wait for it.
func (a *Authorizer) Ready() bool {
	return (a.rbac == nil || a.rbac.gate.Ready()) && (a.node == nil || a.node.gate.Ready())
}
