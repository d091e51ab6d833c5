package compose_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"hyperkube/components/apiserver/aggregation"
	"hyperkube/components/apiserver/compose"
	"hyperkube/internal/testing/testwait"
)

// TestLocalAPI serves an API of another component of the process while its APIService exists and has no
// service.
func TestLocalAPI(t *testing.T) {
	gv := schema.GroupVersion{Group: "usage.example.com", Version: "v1"}
	const things = "/apis/usage.example.com/v1/things"
	e := startOn(t, nil, func(cfg *compose.Config) {
		cfg.LocalAPIs = []aggregation.LocalAPI{{
			GroupVersion: gv, Resources: []metav1.APIResource{{Name: "things", Kind: "Thing", Verbs: metav1.Verbs{"get", "list"}}},
			Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { _, _ = io.WriteString(w, "local "+req.URL.Path) }),
		}}
	})
	ctx := t.Context()
	cfg, err := clientcmd.BuildConfigFromFlags("", e.conf)
	if err != nil {
		t.Fatal(err)
	}
	kube := kubernetes.NewForConfigOrDie(cfg)
	stranger := rest.CopyConfig(cfg)
	stranger.Impersonate.UserName = "stranger"
	services := apiregistrationclient.NewForConfigOrDie(cfg).APIServices()
	returns := func(c kubernetes.Interface, want string) {
		t.Helper()
		testwait.Succeed(t, want, func() error {
			data, err := c.CoreV1().RESTClient().Get().RequestURI(things).DoRaw(ctx)
			if text := fmt.Sprint(string(data), err); !strings.Contains(text, want) {
				return fmt.Errorf("got %s", text)
			}
			return nil
		})
	}
	discovered := func(want bool) {
		t.Helper()
		testwait.Succeed(t, "discovery", func() error {
			lists, err := kube.Discovery().ServerPreferredResources()
			if err != nil {
				return err
			}
			found := false
			for _, l := range lists {
				found = found || l.GroupVersion == gv.String() && len(l.APIResources) == 1 && l.APIResources[0].Kind == "Thing"
			}
			if found != want {
				return fmt.Errorf("discovered: %v", found)
			}
			return nil
		})
	}
	returns(kube, "could not find the requested resource")
	discovered(false)
	s, err := services.Create(ctx, &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.usage.example.com"},
		Spec:       apiregistrationv1.APIServiceSpec{Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: 100, VersionPriority: 100},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	returns(kube, "local "+things)
	returns(kubernetes.NewForConfigOrDie(stranger), "cannot list resource")
	discovered(true)

	patch := func(text string) {
		t.Helper()
		if _, err := services.Patch(ctx, s.Name, "application/merge-patch+json", []byte(text), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	patch(`{"spec": {"insecureSkipTLSVerify": true, "service": {"namespace": "default", "name": "other"}}}`)
	returns(kube, "unable to handle the request")
	patch(`{"spec": {"insecureSkipTLSVerify": null, "service": null}}`)
	returns(kube, "local "+things)
	if err := services.Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	returns(kube, "could not find the requested resource")
	discovered(false)
}
