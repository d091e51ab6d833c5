package clusterroleaggregation

import (
	"context"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/controllers/internal/controltest"
)

func TestAggregate(t *testing.T) {
	rule := func(r string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{r}}
	}
	part := func(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
		return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"to": "view"}}, Rules: rules}
	}
	view := &rbacv1.ClusterRole{
		ObjectMeta:      metav1.ObjectMeta{Name: "view"},
		AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"to": "view"}}}},
		Rules:           []rbacv1.PolicyRule{rule("secrets")},
	}
	f := controltest.New(t, view, part("b", rule("pods"), rule("services")), part("a", rule("pods")))
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	if err := controltest.Sync(t, c.Loop, "view"); err != nil {
		t.Fatal(err)
	}
	got, err := f.Kube.RbacV1().ClusterRoles().Get(context.Background(), "view", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Rules) != 2 || got.Rules[0].Resources[0] != "pods" || got.Rules[1].Resources[0] != "services" {
		t.Errorf("rules %v", got.Rules)
	}
	f.Cache(got)
	f.Writes()
	if err := controltest.Sync(t, c.Loop, "view"); err != nil {
		t.Fatal(err)
	}
	if w := f.Writes(); len(w) != 0 {
		t.Errorf("writes %v", w)
	}
}
