package kubeconfig

import (
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Selection selects a cluster and a user in the kubeconfig files of the user, as kubectl does. The zero value selects the
// current context.
type Selection struct {
	// File is the path of a kubeconfig file. If it is empty, $KUBECONFIG and then ~/.kube/config is used.
	File string
	// Context is the name of a context. If it is empty, the current context is used.
	Context string
	// Namespace replaces the namespace of the context, unless it is empty.
	Namespace string
}

// AddFlags adds the flags --kubeconfig and --context.
func (s *Selection) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&s.File, "kubeconfig", "", "Path to a kubeconfig file. If empty, $KUBECONFIG and then ~/.kube/config is used.")
	f.StringVar(&s.Context, "context", "", "Context of the kubeconfig. If empty, the current context is used.")
}

// Loader returns the selected configuration. It reads the files when it is used, and never asks for credentials.
func (s *Selection) Loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = s.File
	overrides := &clientcmd.ConfigOverrides{CurrentContext: s.Context}
	overrides.Context.Namespace = s.Namespace
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
}

// Load reads the files and returns the selected client configuration, with the user agent, and the selected namespace.
// The caller owns the configuration.
func (s *Selection) Load(userAgent string) (*rest.Config, string, error) {
	loader := s.Loader()
	cfg, err := loader.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("reading kubeconfig: %w", err)
	}
	cfg.UserAgent = userAgent
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("reading kubeconfig: %w", err)
	}
	return cfg, namespace, nil
}
