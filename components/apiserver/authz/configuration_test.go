package authz

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"hyperkube/internal/testing/testwait"
)

// hook is a webhook that allows "jane", denies "joe" and returns no opinion about "joan".
func hook(t *testing.T, asked *atomic.Int32, last *atomic.Pointer[authorizationv1.SubjectAccessReviewSpec]) (kubeconfig string) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked.Add(1)
		var review authorizationv1.SubjectAccessReview
		_ = json.NewDecoder(req.Body).Decode(&review)
		last.Store(review.Spec.DeepCopy())
		if review.Spec.User == "joan" {
			http.Error(w, "not today", http.StatusForbidden)
			return
		}
		review.Status = authorizationv1.SubjectAccessReviewStatus{
			Allowed: review.Spec.User == "jane", Denied: review.Spec.User == "joe", Reason: "as the hook says",
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(t.TempDir(), "webhook.conf")
	if err := os.WriteFile(kubeconfig, []byte("apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster: {server: "+server.URL+
		", insecure-skip-tls-verify: true}\ncontexts:\n- name: c\n  context: {cluster: c, user: u}\ncurrent-context: c\nusers: [{name: u, user: {}}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

func asks(name, namespace string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: name, Groups: []string{"g"}}, Verb: "get", Namespace: namespace,
		APIVersion: "v1", Resource: "pods", ResourceRequest: true,
	}
}

func decide(t *testing.T, a *Authorizer, attrs authorizer.AttributesRecord, want authorizer.Decision, reason string) {
	t.Helper()
	got, why, err := a.Authorize(t.Context(), attrs)
	if got != want || err != nil || !strings.Contains(why, reason) {
		t.Errorf("%s in %q: %v, %q, %v", attrs.User.GetName(), attrs.Namespace, got, why, err)
	}
}

func TestWebhook(t *testing.T) {
	var asked atomic.Int32
	var last atomic.Pointer[authorizationv1.SubjectAccessReviewSpec]
	a, err := New(Config{Modes: []string{ModeWebhook, ModeAlwaysDeny}, Webhook: Webhook{
		ConfigFile: hook(t, &asked, &last), Version: "v1", AuthorizedTTL: time.Minute,
	}})
	if err != nil {
		t.Fatal(err)
	}
	decide(t, a, asks("jane", "x"), authorizer.DecisionAllow, "as the hook says")
	decide(t, a, asks("jane", "x"), authorizer.DecisionAllow, "")
	if asked.Load() != 1 {
		t.Errorf("%d requests", asked.Load())
	}
	decide(t, a, asks("joe", "x"), authorizer.DecisionDeny, "as the hook says")
	decide(t, a, asks("jim", "x"), authorizer.DecisionNoOpinion, "Everything is forbidden.")
	if _, _, incomplete, err := a.RulesFor(t.Context(), asks("jim", "").User, "x"); !incomplete || err == nil {
		t.Errorf("rules of a webhook: %v %v", incomplete, err)
	}
}

func TestAuthorizationConfiguration(t *testing.T) {
	var asked atomic.Int32
	var last atomic.Pointer[authorizationv1.SubjectAccessReviewSpec]
	kubeconfig := hook(t, &asked, &last)
	file := filepath.Join(t.TempDir(), "config")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+"~", []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+"~", file); err != nil {
			t.Fatal(err)
		}
	}
	webhook := func(condition string) string {
		return `- type: Webhook
  name: first
  webhook:
    timeout: 3s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: Deny
    unauthorizedTTL: 30s
    authorizedTTL: 5m
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: ` + kubeconfig + `}
    matchConditions:
    - expression: ` + condition + "\n"
	}
	const allow = "- {type: AlwaysAllow, name: allow}\n"
	write(webhook(`has(request.resourceAttributes) && request.resourceAttributes.namespace == "guarded"`) + allow)
	a, err := New(Config{ConfigFile: file, Log: slog.Default()})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	ctx := t.Context()
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	decide(t, a, asks("joe", "other"), authorizer.DecisionAllow, "")
	if asked.Load() != 0 {
		t.Error("the webhook is called although its match conditions are not met")
	}
	decide(t, a, asks("joe", "guarded"), authorizer.DecisionDeny, "as the hook says")
	if s := last.Load(); s.ResourceAttributes.Resource != "pods" || s.Groups[0] != "g" {
		t.Errorf("request: %+v", s)
	}
	write("- {type: Node, name: node}\n") // not enabled at startup
	write(allow)
	testwait.Until(t, "the configuration to be reloaded", func() bool {
		d, _, _ := a.Authorize(ctx, asks("joe", "guarded"))
		return d == authorizer.DecisionAllow
	})
	for _, text := range []string{"- {type: Other, name: x}\n", allow + allow, webhook("1 +"), "- {type: Webhook, name: x}\n", "[]"} {
		write(text)
		if _, err := New(Config{ConfigFile: file, Log: slog.Default()}); err == nil {
			t.Errorf("accepted: %s", text)
		}
	}
}

// TestFailurePolicy checks that the configuration determines whether a webhook failure denies the
// request.
func TestFailurePolicy(t *testing.T) {
	var asked atomic.Int32
	var last atomic.Pointer[authorizationv1.SubjectAccessReviewSpec]
	kubeconfig := hook(t, &asked, &last)
	for policy, want := range map[string]authorizer.Decision{"Deny": authorizer.DecisionDeny, "NoOpinion": authorizer.DecisionAllow} {
		file := filepath.Join(t.TempDir(), "config")
		if err := os.WriteFile(file, []byte(`apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: first
  webhook:
    timeout: 3s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: `+policy+`
    unauthorizedTTL: 30s
    authorizedTTL: 5m
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: `+kubeconfig+`}
- {type: AlwaysAllow, name: allow}
`), 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := New(Config{ConfigFile: file, Log: slog.Default()})
		if err != nil {
			t.Fatal(err)
		}
		if got, why, err := a.Authorize(t.Context(), asks("joan", "x")); got != want {
			t.Errorf("%s: %v, %q, %v", policy, got, why, err)
		}
	}
	if asked.Load() != 2 {
		t.Errorf("%d requests", asked.Load())
	}
}

func TestABAC(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policies")
	line := func(spec string) string {
		return `{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{` + spec + "}}\n"
	}
	text := "# policies\n\n" + line(`"user":"jane","namespace":"*","resource":"*","apiGroup":"*"`) +
		line(`"user":"joe","namespace":"x","resource":"pods","readonly":true`) +
		line(`"group":"g","nonResourcePath":"/api*"`)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := New(Config{Modes: []string{ModeABAC}, PolicyFile: file})
	if err != nil {
		t.Fatal(err)
	}
	decide(t, a, asks("jane", "y"), authorizer.DecisionAllow, "")
	decide(t, a, asks("joe", "x"), authorizer.DecisionAllow, "")
	decide(t, a, asks("joe", "y"), authorizer.DecisionNoOpinion, "No policy matched.")
	write := asks("joe", "x")
	write.Verb = "create"
	decide(t, a, write, authorizer.DecisionNoOpinion, "")
	path := authorizer.AttributesRecord{User: asks("any", "").User, Verb: "get", Path: "/apis/x"}
	decide(t, a, path, authorizer.DecisionAllow, "")
	path.Path = "/metrics"
	decide(t, a, path, authorizer.DecisionNoOpinion, "")
	if res, urls, _, err := a.RulesFor(t.Context(), asks("joe", "").User, "x"); len(res) != 1 || len(urls) != 1 || err != nil {
		t.Errorf("rules %v %v %v", res, urls, err)
	}
	for _, bad := range []string{"{", `{"kind":"Policy"}`, line(`"userr":"x"`)} {
		if _, err := parseABAC([]byte(bad)); err == nil {
			t.Errorf("accepted: %s", bad)
		}
	}
}

// TestLegacyABAC checks the unversioned format, and that "*" matches only authenticated users.
func TestLegacyABAC(t *testing.T) {
	const known = user.AllAuthenticated
	on := func(who, group, verb, namespace, resource string) authorizer.Attributes {
		a := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: who, Groups: []string{group}}, Verb: verb, Namespace: namespace, Resource: resource, APIGroup: "apps", ResourceRequest: true}
		if resource == "" {
			a.ResourceRequest, a.Path = false, namespace
		}
		return a
	}
	const v1beta1 = `{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"apiGroup":"*","resource":"*","namespace":"*",`
	for _, tc := range []struct {
		line string
		asks authorizer.Attributes
		want authorizer.Decision
	}{
		{`{"user":"jane"}`, on("jane", known, "create", "x", "pods"), authorizer.DecisionAllow},
		{`{"user":"jane"}`, on("jane", known, "get", "/metrics", ""), authorizer.DecisionAllow},
		{`{"user":"jane"}`, on("joe", known, "create", "x", "pods"), authorizer.DecisionNoOpinion},
		{`{"user":"jane","resource":"pods"}`, on("jane", known, "get", "/metrics", ""), authorizer.DecisionNoOpinion},
		{`{"user":"jane","namespace":"x","readonly":true}`, on("jane", known, "list", "x", "pods"), authorizer.DecisionAllow},
		{`{"user":"jane","namespace":"x","readonly":true}`, on("jane", known, "create", "x", "pods"), authorizer.DecisionNoOpinion},
		{`{"user":"jane","namespace":"x","readonly":true}`, on("jane", known, "list", "y", "pods"), authorizer.DecisionNoOpinion},
		{`{"group":"g","resource":"pods"}`, on("jane", "g", "list", "y", "pods"), authorizer.DecisionAllow},
		{`{"readonly":true}`, on("jane", known, "list", "y", "pods"), authorizer.DecisionAllow},
		{`{"readonly":true}`, on(user.Anonymous, user.AllUnauthenticated, "list", "y", "pods"), authorizer.DecisionNoOpinion},
		{`{"user":"*"}`, on(user.Anonymous, user.AllUnauthenticated, "list", "y", "pods"), authorizer.DecisionNoOpinion},
		{v1beta1 + `"user":"*"}}`, on("jane", known, "list", "y", "pods"), authorizer.DecisionAllow},
		{v1beta1 + `"user":"*"}}`, on(user.Anonymous, user.AllUnauthenticated, "list", "y", "pods"), authorizer.DecisionNoOpinion},
		{v1beta1 + `"group":"*"}}`, on(user.Anonymous, user.AllUnauthenticated, "list", "y", "pods"), authorizer.DecisionNoOpinion},
		{v1beta1 + `"user":"` + user.Anonymous + `"}}`, on(user.Anonymous, user.AllUnauthenticated, "list", "y", "pods"), authorizer.DecisionAllow},
	} {
		p, err := parseABAC([]byte(tc.line))
		if err != nil {
			t.Fatalf("%s: %v", tc.line, err)
		}
		if got, _, err := p.Authorize(t.Context(), tc.asks); got != tc.want || err != nil {
			t.Errorf("%s: %v, %v, not %v", tc.line, got, err, tc.want)
		}
	}
}

func FuzzABAC(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"*"}}`))
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = parseABAC(data) })
}
