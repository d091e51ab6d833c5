package compose_test

import (
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"hyperkube/internal/testing/testwait"
)

// TestConstrainedImpersonation allows a user to impersonate another one only for some requests.
func TestConstrainedImpersonation(t *testing.T) {
	e := start(t)
	admin, err := kubernetes.NewForConfig(e.server.ClientConfig("admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range []*rbacv1.ClusterRole{
		{ObjectMeta: metav1.ObjectMeta{Name: "deputy"}, Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"impersonate:user-info"}, APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"users"}, ResourceNames: []string{"bob"}},
			{Verbs: []string{"impersonate:user-info"}, APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"groups"}, ResourceNames: []string{"a", "b", "c", "d"}},
			{Verbs: []string{"impersonate:user-info"}, APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"userextras/example.com/x"}, ResourceNames: []string{"y"}},
			{Verbs: []string{"impersonate-on:user-info:list"}, APIGroups: []string{""}, Resources: []string{"configmaps"}},
		}},
		{ObjectMeta: metav1.ObjectMeta{Name: "bob"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{""}, Resources: []string{"configmaps"}}}},
	} {
		if _, err := admin.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err := admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role.Name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: role.Name}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	as := func(who rest.ImpersonationConfig) kubernetes.Interface {
		cfg := rest.CopyConfig(e.server.ClientConfig("deputy"))
		cfg.Impersonate = who
		kube, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return kube
	}
	kube := as(rest.ImpersonationConfig{UserName: "bob"})
	testwait.Succeed(t, "the deputy lists", func() error {
		_, err := kube.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		return err
	})
	_, err = kube.CoreV1().ConfigMaps("default").Get(t.Context(), "x", metav1.GetOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "deputy" cannot impersonate-on:user-info:get resource "configmaps"`) {
		t.Errorf("get: %v", err)
	}
	for _, tt := range []struct {
		who  rest.ImpersonationConfig
		want string
	}{
		{rest.ImpersonationConfig{UserName: "bob", Groups: []string{"a", "b", "c", "d"}, Extra: map[string][]string{"example.com/x": {"y"}}}, ""},
		{rest.ImpersonationConfig{UserName: "bob", Groups: []string{"a", "b", "c", "e"}}, `groups.authentication.k8s.io "e" is forbidden: User "deputy" cannot impersonate:user-info resource "groups"`},
		{rest.ImpersonationConfig{UserName: "bob", Groups: []string{"system:masters"}}, `groups.authentication.k8s.io "system:masters" is forbidden: User "deputy" cannot impersonate:user-info resource "groups" in API group "authentication.k8s.io" at the cluster scope: impersonating the system:masters group is not allowed`},
		{rest.ImpersonationConfig{UserName: "bob", Extra: map[string][]string{"x": {"y"}}}, `userextras.authentication.k8s.io is forbidden: User "deputy" cannot impersonate:user-info resource "userextras" in API group "authentication.k8s.io" at the cluster scope: impersonating an invalid key in extra is not allowed`},
		{rest.ImpersonationConfig{UserName: "bob", Extra: map[string][]string{"example.com/x": {"y", "z"}}}, `userextras.authentication.k8s.io "z" is forbidden: User "deputy" cannot impersonate:user-info resource "userextras/example.com/x"`},
	} {
		_, err := as(tt.who).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		if got := fmt.Sprint(err); err == nil && tt.want != "" || err != nil && (tt.want == "" || !strings.HasPrefix(got, tt.want)) {
			t.Errorf("%+v: %v, not %q", tt.who, err, tt.want)
		}
	}
}
