// Package authz authorizes requests. Superusers are always allowed. Otherwise the modes of
// --authorization-mode are evaluated in order, and the first one that does not return no opinion
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

// The values of --authorization-mode.
const (
	ModeAlwaysAllow = "AlwaysAllow"
	ModeAlwaysDeny  = "AlwaysDeny"
	ModeNode        = "Node"
	ModeRBAC        = "RBAC"
	ModeWebhook     = "Webhook"
	ModeABAC        = "ABAC"
)

// Config is the configuration of an Authorizer: the modes and what they need.
type Config struct {
	// Modes in the order of evaluation. Nil means Node and RBAC.
	Modes []string
	// Informers and Kube are required for Node and RBAC. Kube must have superuser permissions.
	Informers informers.SharedInformerFactory
	Kube      kubernetes.Interface
	// Pods is the source of pods for the Node mode. Nil means an informer, which keeps all pods
	// decoded.
	Pods Pods
	// Webhook configures the Webhook mode.
	Webhook Webhook
	// PolicyFile contains the policies of the ABAC mode.
	PolicyFile string
	// ConfigFile is an AuthorizationConfiguration that replaces the fields above. It has the same
	// modes and any number of webhooks: --authorization-config. It is reloaded when it changes.
	ConfigFile string
	// Log receives messages about reloads. It may be nil if there is no ConfigFile.
	Log *slog.Logger
}

// Pods is a source of all pods and of their changes, from which the node authorizer determines to which objects the
// pods of each node refer.
type Pods interface {
	// Follow reports all pods that are assigned to a node, and their changes, until ctx is
	// canceled. It calls set for each such pod and each change, removed when a pod is deleted, and
	// listed once set was called for all existing pods. After an interruption it may start again.
	// listed gets a function that reports whether a pod exists; pods for which it returns false
	// were deleted meanwhile. All calls are made by one goroutine, and the callbacks must not
	// retain a pod.
	Follow(ctx context.Context, set func(*corev1.Pod), removed func(namespace, name string), listed func(is func(namespace, name string) bool)) error
}

// Authorizer decides whether users are allowed to make requests, with the configured modes in
// order. It is safe for concurrent use.
type Authorizer struct {
	cfg Config
	// chain contains the authorizers in the order of evaluation. It is replaced when the
	// configuration file changes.
	chain atomic.Pointer[[]namedAuthorizer]
	// The authorizers of the enabled modes, nil if disabled.
	rbac *RBAC
	node *nodeAuthorizer
	abac abac
	// compiler of match conditions. It is created at first use.
	compiler func() authorizationcel.Compiler
	// lastRead is the file content that was last processed. Only New and the goroutine of Run use it.
	lastRead []byte
}

var (
	_ authorizer.Authorizer   = (*Authorizer)(nil)
	_ authorizer.RuleResolver = (*Authorizer)(nil)
)

// New returns an authorizer for the modes in the flags or the configuration file. It requests informers, so the
// caller must start them afterwards, and then call Run. It returns an error if the configuration is invalid, contains
// both flags and a file, or repeats a mode.
func New(cfg Config) (*Authorizer, error) {
	a := &Authorizer{cfg: cfg, compiler: sync.OnceValue(authorizationcel.NewDefaultCompiler)}
	var modes *apiserver.AuthorizationConfiguration
	if cfg.ConfigFile != "" {
		if cfg.Modes != nil {
			return nil, errors.New("--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined")
		}
		if cfg.Log == nil {
			return nil, errors.New("watching the authorization configuration requires a logger")
		}
		var err error
		if a.lastRead, err = os.ReadFile(cfg.ConfigFile); err != nil {
			return nil, fmt.Errorf("reading authorization configuration: %w", err)
		}
		if modes, err = parseConfiguration(a.lastRead, a.compiler()); err != nil {
			return nil, err
		}
	} else {
		names := cfg.Modes
		if names == nil {
			names = []string{ModeNode, ModeRBAC}
		}
		if len(names) == 0 {
			return nil, errors.New("at least one authorization mode must be specified")
		}
		for i, mode := range names {
			if slices.Contains(names[:i], mode) {
				return nil, fmt.Errorf("authorization mode %s is specified more than once", mode)
			}
		}
		modes = configurationFromFlags(names, cfg.Webhook)
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

// prepare creates the authorizer of the mode Node, RBAC or ABAC, and does nothing for other modes. New calls it once
// per mode, because these authorizers keep their informers or files when the configuration file changes.
func (a *Authorizer) prepare(mode string) error {
	if (mode == ModeNode || mode == ModeRBAC) && (a.cfg.Informers == nil || a.cfg.Kube == nil) {
		return fmt.Errorf("authorization mode %s requires informers and a client", mode)
	}
	var err error
	switch mode {
	case ModeNode:
		a.node, err = newNodeAuthorizer(a.cfg.Informers, a.cfg.Kube, a.cfg.Pods)
	case ModeRBAC:
		a.rbac, err = NewRBAC(a.cfg.Informers)
	case ModeABAC:
		if a.abac, err = loadABAC(a.cfg.PolicyFile); err == nil && a.abac == nil {
			a.abac = abac{} // the file exists and contains no policy
		}
	}
	return err
}

// namedAuthorizer is one authorizer of the chain, with its name in the configuration.
type namedAuthorizer struct {
	authorizer.UnconditionalAuthorizer
	name string
}

// fixedDecision is the authorizer of the modes AlwaysAllow and AlwaysDeny. It returns the same
// decision for all requests.
type fixedDecision struct {
	decision authorizer.Decision
	reason   string
}

// Authorize implements authorizer.UnconditionalAuthorizer. It returns the fixed decision.
func (a fixedDecision) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return a.decision, a.reason, nil
}

// RulesFor implements authorizer.RuleResolver. It lists all permissions if everything is allowed,
// and none otherwise.
func (a fixedDecision) RulesFor(context.Context, user.Info, string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if a.decision != authorizer.DecisionAllow {
		return nil, nil, false, nil
	}
	res, urls := allRules()
	return res, urls, false, nil
}

// allRules returns rules that allow everything.
func allRules() ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo) {
	all := []string{"*"}
	return []authorizer.ResourceRuleInfo{&authorizer.DefaultResourceRuleInfo{Verbs: all, APIGroups: all, Resources: all}},
		[]authorizer.NonResourceRuleInfo{&authorizer.DefaultNonResourceRuleInfo{Verbs: all, NonResourceURLs: all}}
}

// isSuperuser reports whether u is in the group system:masters, which may do everything regardless
// of the configuration.
func isSuperuser(u user.Info) bool {
	return u != nil && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

// Authorize implements authorizer.Authorizer. It allows everything to the group system:masters. Otherwise it returns
// the decision of the first mode that has an opinion. If none has one, it returns no opinion, which means that the
// request is not allowed, with the reasons and errors of all modes. A request without a user is an error.
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

// ConditionsAwareAuthorize implements authorizer.Authorizer. It returns the decision of Authorize, which never depends
// on conditions, because conditional decisions are not supported.
func (a *Authorizer) ConditionsAwareAuthorize(ctx context.Context, attrs authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(a.Authorize(ctx, attrs))
}

// EvaluateConditions implements authorizer.Authorizer. It always fails, because conditional
// decisions are not supported.
func (a *Authorizer) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// RulesFor implements authorizer.RuleResolver: it lists the permissions of u in a namespace, for
// SelfSubjectRulesReview. The bool is true if a mode reports that its list is incomplete. Modes that cannot list
// rules at all are omitted.
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

// Ready reports whether all informers and caches of pods, roles and bindings that the authorizer uses are filled.
// Requests that need them wait until then.
func (a *Authorizer) Ready() bool {
	return (a.rbac == nil || a.rbac.gate.Ready()) && (a.node == nil || a.node.gate.Ready())
}
