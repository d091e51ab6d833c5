package policy

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// pod returns a pod with the label app=NAME.
func pod(namespace, name string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}}}
}

// TestAllowed computes the connections of pod web in namespace a. Pods a/web, a/db and b/web exist.
func TestAllowed(t *testing.T) {
	open := newDirection()
	isolated := func(rules ...Rule) Direction {
		return Direction{Policies: []string{"p"}, Rules: append([]Rule{}, rules...)}
	}
	rule := func(peer, ports, pods string) Rule {
		return Rule{Policy: "p", Peer: peer, Ports: append([]string{}, strings.Fields(ports)...), Pods: append([]string{}, strings.Fields(pods)...)}
	}
	for _, c := range []struct {
		name, spec      string
		ingress, egress Direction
	}{
		{"no types: ingress", `{podSelector: {}}`, isolated(), open},
		{"no types with egress", `{podSelector: {}, egress: [{}]}`, isolated(), isolated(rule("any address", "", ""))},
		{"other pod", `{podSelector: {matchLabels: {app: db}}}`, open, open},
		{"only egress", `{podSelector: {matchLabels: {app: web}}, policyTypes: [Egress]}`, open, isolated()},
		{"any peer, ports", `{podSelector: {}, ingress: [{ports: [{port: 80}, {port: dns, protocol: UDP}, {port: 1, endPort: 9}]}]}`,
			isolated(rule("any address", "80/TCP dns/UDP 1-9/TCP", "")), open},
		{"pods of the namespace", `{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}`, isolated(rule("all pods in namespace a", "", "a/db a/web")), open},
		{"pods of all namespaces", `{podSelector: {}, ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}]}]}`,
			isolated(rule("pods app=web in all namespaces", "", "a/web b/web")), open},
		{"namespaces with a label", `{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: b}}}]}]}`,
			isolated(rule("all pods in namespaces team=b", "", "b/web")), open},
		{"peers of one rule", `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: db}}}, {ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}], ports: [{port: 5432}]}]}`,
			open, isolated(rule("pods app=db in namespace a", "5432/TCP", "a/db"), rule("addresses 10.0.0.0/8 except 10.1.0.0/16", "5432/TCP", ""))},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "a"}}
			if err := yaml.UnmarshalStrict([]byte(c.spec), &p.Spec); err != nil {
				t.Fatal(err)
			}
			other := p
			other.Name, other.Namespace = "other", "b"
			web := pod("a", "web")
			namespaces := []corev1.Namespace{
				{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
				{ObjectMeta: metav1.ObjectMeta{Name: "b", Labels: map[string]string{"team": "b"}}},
			}
			got, err := Allowed(&web, []networkingv1.NetworkPolicy{other, p}, namespaces, []corev1.Pod{web, pod("a", "db"), pod("b", "web")})
			if err != nil {
				t.Fatal(err)
			}
			if want := (Connections{c.ingress, c.egress}); !reflect.DeepEqual(got, want) {
				t.Errorf("Allowed returned %+v, expected %+v", got, want)
			}
		})
	}
}

// TestInvalidSelector expects an error that names the policy.
func TestInvalidSelector(t *testing.T) {
	p := networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "a"}}
	p.Spec.PodSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Like"}}
	web := pod("a", "web")
	if _, err := Allowed(&web, []networkingv1.NetworkPolicy{p}, nil, nil); err == nil || !strings.Contains(err.Error(), "NetworkPolicy p") {
		t.Errorf("Allowed returned the error %v", err)
	}
}
