package fairness

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"hyperkube/internal/testing/testwait"
)

// TestInvalidPriorityLevels checks that invalid priority levels, which can only be written directly
// to etcd, are ignored and logged.
func TestInvalidPriorityLevels(t *testing.T) {
	shares, percent := int32(5), int32(0)
	limited := func(change func(*flowcontrolv1.LimitedPriorityLevelConfiguration)) flowcontrolv1.PriorityLevelConfigurationSpec {
		l := &flowcontrolv1.LimitedPriorityLevelConfiguration{NominalConcurrencyShares: &shares, LendablePercent: &percent, LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject}}
		if change != nil {
			change(l)
		}
		return flowcontrolv1.PriorityLevelConfigurationSpec{Type: flowcontrolv1.PriorityLevelEnablementLimited, Limited: l}
	}
	for _, tc := range []struct {
		name   string
		spec   flowcontrolv1.PriorityLevelConfigurationSpec
		broken bool
	}{
		{"without-type", flowcontrolv1.PriorityLevelConfigurationSpec{}, true},
		{"without-limited", flowcontrolv1.PriorityLevelConfigurationSpec{Type: flowcontrolv1.PriorityLevelEnablementLimited}, true},
		{"without-exempt", flowcontrolv1.PriorityLevelConfigurationSpec{Type: flowcontrolv1.PriorityLevelEnablementExempt}, true},
		{"without-shares", limited(func(l *flowcontrolv1.LimitedPriorityLevelConfiguration) { l.NominalConcurrencyShares = nil }), true},
		{"without-percent", limited(func(l *flowcontrolv1.LimitedPriorityLevelConfiguration) { l.LendablePercent = nil }), true},
		{"without-queuing", limited(func(l *flowcontrolv1.LimitedPriorityLevelConfiguration) {
			l.LimitResponse.Type = flowcontrolv1.LimitResponseTypeQueue
		}), true},
		{"without-hands", limited(func(l *flowcontrolv1.LimitedPriorityLevelConfiguration) {
			l.LimitResponse = flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeQueue, Queuing: &flowcontrolv1.QueuingConfiguration{Queues: 1}}
		}), true},
		{"whole", limited(nil), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			level := &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: tc.name, UID: "u", ResourceVersion: "1"}, Spec: tc.spec}
			schema := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: flowcontrolv1.FlowSchemaSpec{
				MatchingPrecedence: 1, PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: tc.name},
				Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
					Subjects:      []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindGroup, Group: &flowcontrolv1.GroupSubject{Name: "*"}}},
					ResourceRules: []flowcontrolv1.ResourcePolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, Namespaces: []string{"*"}, ClusterScope: true}},
				}},
			}}
			client := fake.NewClientset(level, schema)
			factory := informers.NewSharedInformerFactory(client, 0)
			var log bytes.Buffer
			l, err := New(Config{Informers: factory, Client: client.FlowcontrolV1(), Seats: 10, Log: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			factory.StartWithContext(ctx)
			factory.WaitForCacheSyncWithContext(ctx)
			done := make(chan error, 1)
			go func() { done <- l.Run(ctx) }()
			// The limiter has processed the level once it has set the condition of the schema.
			var conditions []flowcontrolv1.FlowSchemaCondition
			testwait.Until(t, "the level to be processed", func() bool {
				got, err := client.FlowcontrolV1().FlowSchemas().Get(ctx, "all", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				conditions = got.Status.Conditions
				return len(conditions) > 0
			})
			if want := map[bool]flowcontrolv1.ConditionStatus{true: "True", false: "False"}[tc.broken]; conditions[0].Status != want {
				t.Errorf("the condition of its schema: %+v", conditions)
			}
			if got := ask(t, l, "get", ordinary, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }); got.Code != http.StatusOK {
				t.Errorf("a request: %d", got.Code)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			factory.Shutdown()
			if got := strings.Count(log.String(), tc.name); (got > 0) != tc.broken {
				t.Errorf("the log: %s", log.String())
			}
		})
	}
}
