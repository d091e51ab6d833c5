package kubelet

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/kubelet/pod/images"
	"hyperkube/components/kubelet/pod/objectcache"
	"hyperkube/components/kubelet/pod/pullcredentials"
)

// newProviders creates the credential providers. It returns nil if none are configured.
func (k *Kubelet) newProviders() (*pullcredentials.Providers, error) {
	if k.cfg.Images.CredentialProviders == "" {
		return nil, nil
	}
	list, err := pullcredentials.Load(k.cfg.Images.CredentialProviders)
	if err != nil {
		return nil, err
	}
	return pullcredentials.New(pullcredentials.Config{
		Providers: list, Dir: k.cfg.Images.CredentialProviderDir, Match: images.Matches, Log: k.log,
		Account: func(ctx context.Context, pod *v1.Pod) (*v1.ServiceAccount, error) {
			if k.kube == nil {
				return nil, objectcache.ErrNoAPI
			}
			return k.kube.CoreV1().ServiceAccounts(pod.Namespace).Get(ctx, pod.Spec.ServiceAccountName, metav1.GetOptions{})
		},
		Token: func(ctx context.Context, pod *v1.Pod, audience string) (string, error) {
			text, _, _, err := k.tokens.Bound(ctx, pod, audience, nil)
			return text, err
		},
	})
}
