package authz

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/load"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	utilwebhook "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	webhookmetrics "k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"

	"hyperkube/internal/base/configfile"
)

// Webhook configures the webhook of the flags: another server that decides about requests.
//
// https://kubernetes.io/docs/reference/access-authn-authz/webhook/
type Webhook struct {
	// ConfigFile is a kubeconfig of the server:
	// --authorization-webhook-config-file.
	ConfigFile string
	// Version of the SubjectAccessReview: "v1" or "v1beta1". The default is "v1beta1".
	Version string
	// AuthorizedTTL and UnauthorizedTTL are how long responses are cached. Zero disables the cache.
	AuthorizedTTL, UnauthorizedTTL time.Duration
}

// configurationFromFlags returns the AuthorizationConfiguration that is equivalent to the flags, so
// that both are processed in the same way.
func configurationFromFlags(modes []string, hook Webhook) *apiserver.AuthorizationConfiguration {
	out := &apiserver.AuthorizationConfiguration{}
	for _, mode := range modes {
		a := apiserver.AuthorizerConfiguration{Type: apiserver.AuthorizerType(mode), Name: defaultName(mode)}
		if mode == ModeWebhook {
			version := hook.Version
			if version == "" {
				version = "v1beta1"
			}
			a.Webhook = &apiserver.WebhookConfiguration{
				AuthorizedTTL: metav1.Duration{Duration: hook.AuthorizedTTL}, CacheAuthorizedRequests: hook.AuthorizedTTL > 0,
				UnauthorizedTTL: metav1.Duration{Duration: hook.UnauthorizedTTL}, CacheUnauthorizedRequests: hook.UnauthorizedTTL > 0,
				Timeout:                                  metav1.Duration{Duration: 30 * time.Second},
				FailurePolicy:                            apiserver.FailurePolicyNoOpinion,
				SubjectAccessReviewVersion:               version,
				MatchConditionSubjectAccessReviewVersion: "v1",
				ConnectionInfo:                           apiserver.WebhookConnectionInfo{Type: apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile, KubeConfigFile: &hook.ConfigFile},
			}
		}
		out.Authorizers = append(out.Authorizers, a)
	}
	return out
}

// defaultName returns the name of the authorizer of a mode that flags configure. It occurs in the
// reasons of decisions.
func defaultName(mode string) string {
	if mode == ModeWebhook {
		return "default"
	}
	return string(bytes.ToLower([]byte(mode)))
}

// ValidateFiles returns the errors in the file of --authorization-config and that of --authorization-policy-file. A
// file whose path is empty is not checked.
func ValidateFiles(config, policy string) error {
	if config != "" {
		data, err := os.ReadFile(config)
		if err != nil {
			return fmt.Errorf("reading authorization configuration: %w", err)
		}
		if _, err := parseConfiguration(data, authorizationcel.NewDefaultCompiler()); err != nil {
			return err
		}
	}
	if policy != "" {
		_, err := loadABAC(policy)
		return err
	}
	return nil
}

// parseConfiguration decodes and validates an AuthorizationConfiguration of any API version.
// compiler compiles the match conditions of webhooks.
//
// https://kubernetes.io/docs/reference/access-authn-authz/authorization/#using-configuration-file-for-authorization
func parseConfiguration(data []byte, compiler authorizationcel.Compiler) (*apiserver.AuthorizationConfiguration, error) {
	cfg, err := load.LoadFromData(data)
	if err != nil {
		return nil, fmt.Errorf("reading authorization configuration: %w", err)
	}
	known := sets.New(ModeAlwaysAllow, ModeAlwaysDeny, ModeABAC, ModeWebhook, ModeRBAC, ModeNode)
	if err := validation.ValidateAuthorizationConfiguration(compiler, nil, cfg, known, sets.New(ModeWebhook)).ToAggregate(); err != nil {
		return nil, fmt.Errorf("authorization configuration: %w", err)
	}
	return cfg, nil
}

// build returns the authorizers that cfg specifies, in order. It returns an error for the modes Node, RBAC and ABAC
// if they were not enabled at startup, and for a webhook whose kubeconfig is invalid.
func (a *Authorizer) build(cfg *apiserver.AuthorizationConfiguration) ([]namedAuthorizer, error) {
	var chain []namedAuthorizer
	absent := func(mode string) error {
		return fmt.Errorf("authorizer type %s is not allowed if it was not enabled at initial server startup", mode)
	}
	for _, c := range cfg.Authorizers {
		add := func(a authorizer.UnconditionalAuthorizer) { chain = append(chain, namedAuthorizer{a, c.Name}) }
		switch mode := string(c.Type); mode {
		case ModeAlwaysAllow:
			add(fixedDecision{decision: authorizer.DecisionAllow})
		case ModeAlwaysDeny:
			add(fixedDecision{decision: authorizer.DecisionNoOpinion, reason: "Everything is forbidden."})
		case ModeNode:
			if a.node == nil {
				return nil, absent(mode)
			}
			add(a.node)
		case ModeRBAC:
			if a.rbac == nil {
				return nil, absent(mode)
			}
			add(a.rbac)
		case ModeABAC:
			if a.abac == nil {
				return nil, absent(mode)
			}
			add(a.abac)
		case ModeWebhook:
			w, err := a.webhook(c.Name, c.Webhook)
			if err != nil {
				return nil, err
			}
			add(w)
		default:
			return nil, fmt.Errorf("%q is not a valid authorization mode", mode)
		}
	}
	return chain, nil
}

// webhookBackoff is the delay before the first retry of a request to a webhook that does not
// respond. There are five attempts.
const webhookBackoff = 500 * time.Millisecond

// webhook returns the authorizer that sends requests to the webhook with the name. cfg contains its connection, the
// lifetimes of cached responses, and the decision if it fails. It returns an error if its kubeconfig is missing or
// invalid.
func (a *Authorizer) webhook(name string, cfg *apiserver.WebhookConfiguration) (authorizer.UnconditionalAuthorizer, error) {
	if cfg == nil || cfg.ConnectionInfo.KubeConfigFile == nil || *cfg.ConnectionInfo.KubeConfigFile == "" {
		return nil, errors.New("authorization mode Webhook requires a configuration file")
	}
	at, err := utilwebhook.LoadKubeconfig(*cfg.ConnectionInfo.KubeConfigFile, nil)
	if err != nil {
		return nil, fmt.Errorf("reading configuration of authorization webhook %s: %w", name, err)
	}
	if cfg.Timeout.Duration != 0 {
		at.Timeout = cfg.Timeout.Duration
	}
	onError := authorizer.DecisionNoOpinion
	if cfg.FailurePolicy == apiserver.FailurePolicyDeny {
		onError = authorizer.DecisionDeny
	}
	authorized, unauthorized := cfg.AuthorizedTTL.Duration, cfg.UnauthorizedTTL.Duration
	if !cfg.CacheAuthorizedRequests {
		authorized = 0
	}
	if !cfg.CacheUnauthorizedRequests {
		unauthorized = 0
	}
	w, err := webhook.New(at, cfg.SubjectAccessReviewVersion, authorized, unauthorized,
		utilwebhook.DefaultRetryBackoffWithInitialDelay(webhookBackoff), onError, cfg.MatchConditions, name,
		webhookmetrics.NoopAuthorizerMetrics{}, a.compiler())
	if err != nil {
		return nil, fmt.Errorf("creating authorization webhook %s: %w", name, err)
	}
	return w, nil
}

// Run follows the pods for the mode Node, and reloads the configuration file when it changes, until ctx is canceled.
// If the new content is invalid, Run logs an error and keeps the previous configuration.
func (a *Authorizer) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	if a.node != nil && a.cfg.Pods != nil {
		group.Go(func() error { return a.node.follow(ctx, a.cfg.Pods) })
	}
	group.Go(func() error { return a.followFile(ctx) })
	return group.Wait()
}

// followFile reloads the configuration file when it changes, until ctx is canceled. It only waits
// for ctx if there is no file.
func (a *Authorizer) followFile(ctx context.Context) error {
	if a.cfg.ConfigFile == "" {
		<-ctx.Done()
		return nil
	}
	log := a.cfg.Log
	return configfile.Follow(ctx, a.cfg.ConfigFile, log, func() {
		data, err := os.ReadFile(a.cfg.ConfigFile)
		if err != nil {
			if !errors.Is(err, os.ErrNotExist) {
				log.ErrorContext(ctx, "reading changed authorization configuration file failed; the previous configuration stays in effect, no retry until the file changes: make the file readable, it is then reloaded", "file", a.cfg.ConfigFile, "err", err)
			}
			return
		}
		if bytes.Equal(data, a.lastRead) {
			return
		}
		a.lastRead = data
		cfg, err := parseConfiguration(data, a.compiler())
		var chain []namedAuthorizer
		if err == nil {
			chain, err = a.build(cfg)
		}
		if err != nil {
			log.ErrorContext(ctx, "changed authorization configuration file is invalid; the previous configuration stays in effect: correct the file, it is then reloaded", "file", a.cfg.ConfigFile, "err", err)
			return
		}
		a.chain.Store(&chain)
		log.InfoContext(ctx, "authorization configuration reloaded after a change of the file, it is in effect now", "file", a.cfg.ConfigFile)
	})
}
