package audit

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditapi "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

const testPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- {level: None, users: [quiet]}
- {level: RequestResponse, resources: [{group: "", resources: [configmaps]}]}
- {level: Metadata}
`

func start(t *testing.T) (*Auditor, func() []auditapi.Event) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(file, []byte(testPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	var cfg Config
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	cfg.Flags(flags)
	out := filepath.Join(dir, "audit.log")
	if err := flags.Parse([]string{"--audit-policy-file=" + file, "--audit-log-path=" + out}); err != nil {
		t.Fatal(err)
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.logFile.Close(); err != nil {
			t.Error(err)
		}
	})
	return a, func() []auditapi.Event {
		data, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		var events []auditapi.Event
		for d := json.NewDecoder(strings.NewReader(string(data))); ; {
			var e auditapi.Event
			if err := d.Decode(&e); err == io.EOF {
				return events
			} else if err != nil {
				t.Fatal(err)
			}
			events = append(events, e)
		}
	}
}

func serve(a *Auditor, who, verb, resource, body string, next http.HandlerFunc) {
	info := &apirequest.RequestInfo{IsResourceRequest: true, Verb: verb, APIVersion: "v1", Resource: resource, Namespace: "x", Path: "/p"}
	req := httptest.NewRequest(http.MethodPost, "/p", strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	ctx := audit.WithAuditContext(apirequest.WithUser(apirequest.WithRequestInfo(req.Context(), info), &user.DefaultInfo{Name: who}))
	a.Serve(httptest.NewRecorder(), req.WithContext(ctx), time.Now(), next)
}

func TestLevels(t *testing.T) {
	a, events := start(t)
	reply := func(code int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.ReadAll(req.Body)
			audit.AddAuditAnnotation(req.Context(), "authorization.k8s.io/decision", "allow")
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
		}
	}
	const object = `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","managedFields":[{"manager":"m"}]}}`
	serve(a, "quiet", "create", "configmaps", object, reply(201, object))
	serve(a, "bob", "create", "configmaps", object, reply(201, object))
	serve(a, "bob", "create", "secrets", object, reply(403, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","reason":"Forbidden","code":403}`))
	func() {
		defer func() { _ = recover() }()
		serve(a, "bob", "get", "pods", "", func(http.ResponseWriter, *http.Request) { panic("oh") })
	}()
	serve(a, "bob", "watch", "pods", "", reply(200, "{}"))
	got := events()
	if len(got) != 5 {
		t.Fatalf("%d events: %+v", len(got), got)
	}
	full, denied, panicked, begun := got[0], got[1], got[2], got[3]
	if full.ObjectRef.Name != "a" || full.RequestObject == nil || full.ResponseObject == nil ||
		strings.Contains(string(full.RequestObject.Raw)+string(full.ResponseObject.Raw), "managedFields") ||
		full.Annotations["authorization.k8s.io/decision"] != "allow" || full.ResponseStatus.Code != 201 {
		t.Errorf("with bodies: %+v", full)
	}
	if denied.RequestObject != nil || denied.ResponseStatus.Reason != "Forbidden" || denied.ResponseStatus.Message != "no" {
		t.Errorf("refused: %+v", denied)
	}
	if panicked.Stage != auditapi.StagePanic || panicked.ResponseStatus.Code != 500 {
		t.Errorf("panicked: %+v", panicked)
	}
	if begun.Stage != auditapi.StageResponseStarted || got[4].Stage != auditapi.StageResponseComplete {
		t.Errorf("stages of a watch: %s, %s", begun.Stage, got[4].Stage)
	}
}

// TestRecordedObject checks that the event has the decoded object if decoding succeeded, and no
// object otherwise, and that the status of a deletion is recorded at every level.
func TestRecordedObject(t *testing.T) {
	a, events := start(t)
	answer := func(code int, body string, taken *corev1.ConfigMap) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.ReadAll(req.Body)
			if taken != nil {
				Requested(req.Context(), taken, corev1.SchemeGroupVersion)
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
		}
	}
	taken := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	const failed = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","reason":"BadRequest","code":400}`
	serve(a, "bob", "create", "configmaps", `{"metadata":{"name":"a"}}`, answer(201, "{}", taken))
	serve(a, "bob", "create", "configmaps", `{"kind":"Pod"}`, answer(400, failed, nil))
	serve(a, "bob", "delete", "secrets", "", answer(200, `{"kind":"Status","apiVersion":"v1","status":"Success","details":{"name":"a"}}`, nil))
	serve(a, "bob", "watch", "pods", "", answer(400, failed, nil))
	got := events()
	if len(got) != 5 {
		t.Fatalf("%d events: %+v", len(got), got)
	}
	if raw := string(got[0].RequestObject.Raw); !strings.HasPrefix(raw, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"`) {
		t.Errorf("taken for %s", raw)
	}
	if got[1].RequestObject != nil {
		t.Errorf("not understood: %s", got[1].RequestObject.Raw)
	}
	if s := got[2].ResponseStatus; s.Status != "Success" || s.Code != 200 || s.Details == nil || s.Details.Name != "a" {
		t.Errorf("deleted: %+v", s)
	}
	if s := got[3]; s.Stage != auditapi.StageResponseStarted || s.ResponseStatus.Message != "no" || s.ResponseStatus.Code != 400 {
		t.Errorf("watch that failed: %+v", s)
	}
}

func TestRefused(t *testing.T) {
	a, events := start(t)
	info := &apirequest.RequestInfo{Verb: "get", Path: "/x"}
	req := httptest.NewRequest(http.MethodGet, "/x", nil)
	ctx := audit.WithAuditContext(apirequest.WithRequestInfo(req.Context(), info))
	a.Refused(httptest.NewRecorder(), req.WithContext(ctx), time.Now(), "Authentication failed, no credentials provided",
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	got := events()
	if len(got) != 1 || got[0].Stage != auditapi.StageResponseStarted || got[0].ResponseStatus.Code != 401 || !strings.HasPrefix(got[0].ResponseStatus.Message, "Authentication failed") {
		t.Errorf("events: %+v", got)
	}
}

// TestRotation checks that audit logs are limited in size and number by default.
func TestRotation(t *testing.T) {
	var cfg Config
	cfg.Flags(pflag.NewFlagSet("", pflag.ContinueOnError))
	if cfg.MaxAge != 366 || cfg.MaxBackups != 100 || cfg.MaxSize != 100 {
		t.Errorf("kept for %d days, %d files of %d MB", cfg.MaxAge, cfg.MaxBackups, cfg.MaxSize)
	}
}

func TestDisabled(t *testing.T) {
	if a, err := New(Config{}); a != nil || err != nil {
		t.Errorf("without configuration: %v, %v", a, err)
	}
}
