package authn

import (
	"fmt"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	utilwebhook "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
)

// Webhook asks another server whose a bearer token is.
//
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#webhook-token-authentication
type Webhook struct {
	// ConfigFile is a kubeconfig of the server:
	// --authentication-token-webhook-config-file. Empty: there is none.
	ConfigFile string
	// Version of the TokenReview: "v1" or "v1beta1", which is also meant by
	// an empty one.
	Version string
	// CacheTTL is how long answers are remembered; zero: not at all.
	CacheTTL time.Duration
}

// webhookBackoff is the first pause before a server that does not answer is
// asked again; it is asked five times.
const webhookBackoff = 500 * time.Millisecond

func newWebhook(cfg Webhook, audiences authenticator.Audiences) (authenticator.Token, error) {
	if cfg.Version == "" {
		cfg.Version = "v1beta1"
	}
	at, err := utilwebhook.LoadKubeconfig(cfg.ConfigFile, nil)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration of the authentication webhook: %w", err)
	}
	w, err := webhook.New(at, cfg.Version, audiences, utilwebhook.DefaultRetryBackoffWithInitialDelay(webhookBackoff))
	if err != nil {
		return nil, fmt.Errorf("making the authentication webhook: %w", err)
	}
	if cfg.CacheTTL == 0 {
		return w, nil
	}
	return cache.New(w, false, cfg.CacheTTL, cfg.CacheTTL), nil
}
