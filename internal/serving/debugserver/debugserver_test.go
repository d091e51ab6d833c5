package debugserver

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestServer checks that every client can access health checks, and only authorized clients
// metrics.
func TestServer(t *testing.T) {
	kube := fake.NewClientset()
	kube.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		review.Status.Authenticated = review.Spec.Token == "good" || review.Spec.Token == "other"
		review.Status.User.Username = "user-" + review.Spec.Token
		return true, review, nil
	})
	kube.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		review.Status.Allowed = review.Spec.User == "user-good" && strings.HasPrefix(review.Spec.NonResourceAttributes.Path, "/metrics") && review.Spec.NonResourceAttributes.Verb == "get"
		return true, review, nil
	})
	var ready atomic.Bool
	s, err := New(Config{Component: "it", Addr: "127.0.0.1:0", Reviews: kube, Live: []Check{{"alive", func() error { return nil }}}, Checks: []Check{{"informer-sync", func() error {
		if !ready.Load() {
			return errors.New("not synced")
		}
		return nil
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-s.Ready()
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	get := func(path, token string) (int, string) {
		t.Helper()
		r, err := http.NewRequest("GET", "https://"+s.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		answer, err := web.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(body)
	}
	for _, c := range []struct {
		path, token string
		code        int
		want        string
	}{
		{"/healthz", "", 200, "ok"},
		{"/livez?verbose", "", 200, "[+]ping ok\n[+]alive ok\nlivez check passed\n"},
		{"/readyz", "", 500, "[+]ping ok\n[-]informer-sync failed: reason withheld\nreadyz check failed\n"},
		{"/metrics/slis", "good", 200, `kubernetes_healthchecks_total{name="alive",status="success",type="healthz"} 1`},
		{"/metrics/slis", "good", 200, `kubernetes_healthchecks_total{name="alive",status="success",type="livez"} 1`},
		{"/metrics", "", 403, "forbidden: User \"system:anonymous\" cannot get path \"/metrics\""},
		{"/metrics", "bad", 401, "Unauthorized"},
		{"/metrics", "other", 403, "forbidden: User \"user-other\""},
		{"/metrics", "good", 200, "go_goroutines"},
		{"/debug/pprof/", "good", 403, "forbidden"},
	} {
		if code, body := get(c.path, c.token); code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("%s as %q: %d %q, want %d %q", c.path, c.token, code, body, c.code, c.want)
		}
	}
	ready.Store(true)
	if code, body := get("/readyz", ""); code != 200 || body != "ok" {
		t.Errorf("readyz: %d %q", code, body)
	}
	web.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
