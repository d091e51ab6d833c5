package authn

import (
	"fmt"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	utilwebhook "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
)

// Webhook configures a webhook that authenticates bearer tokens.
//
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#webhook-token-authentication
type Webhook struct {
	// ConfigFile is a kubeconfig of the server: --authentication-token-webhook-config-file. Empty
	// means no webhook.
	ConfigFile string
	// Version of the TokenReview: "v1" or "v1beta1". The default is "v1beta1".
	Version string
	// CacheTTL is how long responses are cached. Zero disables the cache.
	CacheTTL time.Duration
}

// webhookBackoff is the delay before the first retry of a request to a webhook that does not
// respond. There are five attempts.
const webhookBackoff = 500 * time.Millisecond

// newWebhook returns the authenticator that sends tokens to the configured webhook and caches the responses for
// CacheTTL. audiences are those of the API server. It returns an error if the kubeconfig is invalid.
func newWebhook(cfg Webhook, audiences authenticator.Audiences) (authenticator.Token, error) {
	if cfg.Version == "" {
		cfg.Version = "v1beta1"
	}
	at, err := utilwebhook.LoadKubeconfig(cfg.ConfigFile, nil)
	if err != nil {
		return nil, fmt.Errorf("reading configuration of authentication webhook: %w", err)
	}
	w, err := webhook.New(at, cfg.Version, audiences, utilwebhook.DefaultRetryBackoffWithInitialDelay(webhookBackoff))
	if err != nil {
		return nil, fmt.Errorf("creating authentication webhook: %w", err)
	}
	if cfg.CacheTTL == 0 {
		return w, nil
	}
	return cache.New(w, false, cfg.CacheTTL, cfg.CacheTTL), nil
}
