package e2e

import (
	"context"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

// TestSecretToken requests a token in a Secret and uses it. The Secret is deleted with its service
// account.
func TestSecretToken(t *testing.T) {
	if shared == nil {
		t.Skip("needs the shared cluster")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	const name = "kept-token"
	core := shared.kube.CoreV1()
	accounts, secrets := core.ServiceAccounts("default"), core.Secrets("default")
	if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	made, err := secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: name}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := secrets.Watch(ctx, metav1.ListOptions{ResourceVersion: made.ResourceVersion, FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	filled, ok := (<-w.ResultChan()).Object.(*corev1.Secret)
	if !ok || len(filled.Data["ca.crt"]) == 0 || string(filled.Data["namespace"]) != "default" {
		t.Fatalf("%+v", filled)
	}
	review, err := shared.kube.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: string(filled.Data["token"])},
	}, metav1.CreateOptions{})
	if err != nil || review.Status.User.Username != "system:serviceaccount:default:"+name {
		t.Fatalf("%+v %v", review, err)
	}
	if err := accounts.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for e := range w.ResultChan() {
		if e.Type == watch.Deleted {
			break
		}
		// The date of its use is recorded once.
		if used, ok := e.Object.(*corev1.Secret); !ok || e.Type != watch.Modified || used.Labels["kubernetes.io/legacy-token-last-used"] == "" {
			t.Errorf("%v", e)
		}
	}
}
