// Package clustertrustbundle publishes the CA certificates that verify the API server as a
// ClusterTrustBundle, which pods may mount.
//
// https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/#kube-apiserver-serving-signer
package clustertrustbundle

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"

	"hyperkube/components/controllers/internal/control"
)

// signerName is the signer of the published bundle. This controller deletes all other bundles of the signer.
const signerName = "kubernetes.io/kube-apiserver-serving"

// Controller maintains the ClusterTrustBundle with the CA certificates of the API server's serving certificate. Use
// New to create it.
type Controller struct {
	*control.Loop
	env     control.Env
	name    string
	bundle  string
	bundles certificateslisters.ClusterTrustBundleLister
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. ca contains the CA
// certificates of the API server in PEM format and must not be empty. The caller then starts the informers and calls
// Run.
func New(env control.Env, ca []byte) (*Controller, error) {
	env = env.Defaulted()
	if len(ca) == 0 {
		return nil, errors.New("clustertrustbundle: no certificates")
	}
	bundles := env.Informers.Certificates().V1().ClusterTrustBundles()
	c := &Controller{env: env, name: bundleName(ca), bundle: string(ca), bundles: bundles.Lister()}
	c.Loop = control.NewLoop(env, "clustertrustbundle", c.sync)
	c.Prepare(func(context.Context) error {
		c.Add(signerName)
		return nil
	})
	return c, c.Watch(bundles.Informer(), control.AnyEvent(func(b *certificatesv1.ClusterTrustBundle) {
		if b.Spec.SignerName == signerName {
			c.Add(signerName)
		}
	}))
}

// bundleName returns the name of the bundle with these certificates. It depends on the certificates, so that a new
// bundle exists before the old one is deleted.
func bundleName(ca []byte) string {
	return fmt.Sprintf("%s:%x", strings.ReplaceAll(signerName, "/", ":"), sha256.Sum256(ca))
}

// sync creates or corrects the bundle of the current CA certificates, and deletes the other bundles of signerName. Its
// key has no meaning, because there is only one bundle.
func (c *Controller) sync(ctx context.Context, _ string) error {
	client := c.env.Kube.CertificatesV1().ClusterTrustBundles()
	there, err := c.bundles.Get(c.name)
	switch {
	case apierrors.IsNotFound(err):
		_, err = client.Create(ctx, &certificatesv1.ClusterTrustBundle{
			ObjectMeta: metav1.ObjectMeta{Name: c.name},
			Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signerName, TrustBundle: c.bundle},
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating trust bundle: %w", err)
		}
	case err != nil:
		return err
	case there.Spec.TrustBundle != c.bundle:
		next := there.DeepCopy()
		next.Spec.TrustBundle = c.bundle
		if _, err = client.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("updating trust bundle: %w", err)
		}
	}
	all, err := c.bundles.List(labels.Everything())
	if err != nil {
		return err
	}
	var failed error
	for _, b := range all {
		if b.Spec.SignerName != signerName || b.Name == c.name {
			continue
		}
		if err := client.Delete(ctx, b.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}
