package env

import (
	"context"
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestExpand(t *testing.T) {
	vars := map[string]string{"A": "1", "B": "x y", "EMPTY": ""}
	for in, want := range map[string]string{
		"": "", "plain": "plain", "$(A)": "1", "$$(A)": "$(A)", "$(A)$(B)": "1x y", "$(C)": "$(C)", "$(EMPTY)": "",
		"$": "$", "$$": "$", "a$": "a$", "$(A": "$(A", "$A": "$A", "$$$(A)": "$1", "$()": "$()", "pre-$(A)-post": "pre-1-post", "$($(A))": "$($(A))",
	} {
		if got := Expand(in, func(n string) (string, bool) { v, ok := vars[n]; return v, ok }); got != want {
			t.Errorf("Expand(%q) = %q, want %q", in, got, want)
		}
	}
}

type objects struct{}

func (objects) ConfigMap(_ context.Context, _, name string) (*v1.ConfigMap, error) {
	if name != "cm" {
		return nil, apierrors.NewNotFound(v1.Resource("configmap"), name)
	}
	return &v1.ConfigMap{Data: map[string]string{"one": "1", "two": "2"}}, nil
}

func (objects) Secret(_ context.Context, _, name string) (*v1.Secret, error) {
	if name != "s" {
		return nil, apierrors.NewNotFound(v1.Resource("secret"), name)
	}
	return &v1.Secret{Data: map[string][]byte{"password": []byte("p"), "bad=key": []byte("x")}}, nil
}

func TestMake(t *testing.T) {
	yes := true
	local := func(n string) v1.LocalObjectReference { return v1.LocalObjectReference{Name: n} }
	c := &v1.Container{
		Name: "c",
		Resources: v1.ResourceRequirements{
			Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1500m"), v1.ResourceMemory: resource.MustParse("64Mi")},
		},
		EnvFrom: []v1.EnvFromSource{
			{Prefix: "P_", ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: local("cm")}},
			{SecretRef: &v1.SecretEnvSource{LocalObjectReference: local("s")}},
			{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: local("none"), Optional: &yes}},
		},
		Env: []v1.EnvVar{
			{Name: "A", Value: "a"}, {Name: "B", Value: "$(A)-$(P_one)-$(WEB_SERVICE_HOST)"},
			{Name: "NAME", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
			{Name: "LABEL", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels['x']"}}},
			{Name: "IP", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
			{Name: "CPU", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.cpu"}}},
			{Name: "MEM", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.memory", Divisor: resource.MustParse("1Mi")}}},
			{Name: "REQ", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "requests.cpu"}}},
			{Name: "PW", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: local("s"), Key: "password"}}},
			{Name: "OPT", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: local("cm"), Key: "no", Optional: &yes}}},
		},
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: "ns", Labels: map[string]string{"x": "y"}}}
	services := Services([]*v1.Service{
		{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns"}, Spec: v1.ServiceSpec{ClusterIP: "10.0.0.9", Ports: []v1.ServicePort{{Name: "http", Port: 80}}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "none", Namespace: "ns"}, Spec: v1.ServiceSpec{ClusterIP: "None"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere", Namespace: "other"}, Spec: v1.ServiceSpec{ClusterIP: "10.0.0.8", Ports: []v1.ServicePort{{Port: 1}}}},
	}, "ns", true)
	got, err := Make(context.Background(), Input{Pod: pod, Container: c, Objects: objects{}, Services: services, At: Addresses{PodIPs: []string{"10.1.1.1"}}})
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for _, v := range got {
		have[v.Name] = v.Value
	}
	want := map[string]string{
		"P_one": "1", "P_two": "2", "password": "p", "A": "a", "B": "a-1-10.0.0.9", "NAME": "pod", "LABEL": "y", "IP": "10.1.1.1",
		"CPU": "2", "MEM": "64", "REQ": "0", "PW": "p",
		"WEB_SERVICE_HOST": "10.0.0.9", "WEB_SERVICE_PORT": "80", "WEB_SERVICE_PORT_HTTP": "80", "WEB_PORT": "tcp://10.0.0.9:80",
		"WEB_PORT_80_TCP": "tcp://10.0.0.9:80", "WEB_PORT_80_TCP_PROTO": "tcp", "WEB_PORT_80_TCP_PORT": "80", "WEB_PORT_80_TCP_ADDR": "10.0.0.9",
	}
	if !reflect.DeepEqual(have, want) {
		t.Errorf("got  %v\nwant %v", have, want)
	}
	for _, v := range []v1.EnvVarSource{
		{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: local("none"), Key: "k"}},
		{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: local("cm"), Key: "k"}},
		{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: local("s"), Key: "k"}},
		{FieldRef: &v1.ObjectFieldSelector{FieldPath: "spec.nothing"}},
	} {
		bad := &v1.Container{Env: []v1.EnvVar{{Name: "X", ValueFrom: &v}}}
		if _, err := Make(context.Background(), Input{Pod: pod, Container: bad, Objects: objects{}}); err == nil {
			t.Errorf("%+v was accepted", v)
		}
	}
}

// TestPodLimits checks that the pod-level limit applies to a container without a limit.
func TestPodLimits(t *testing.T) {
	pod := &v1.Pod{Spec: v1.PodSpec{Resources: &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi")}}}}
	node := v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("1Gi")}
	own := &v1.Container{Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Mi")}}}
	for _, tc := range []struct {
		field string
		c     *v1.Container
		want  string
	}{
		{"limits.memory", &v1.Container{}, "67108864"},
		{"limits.cpu", &v1.Container{}, "2"},
		{"limits.memory", own, "1048576"},
		{"requests.memory", &v1.Container{}, "0"},
	} {
		if got, err := Resource(&v1.ResourceFieldSelector{Resource: tc.field}, pod, tc.c, node); err != nil || got != tc.want {
			t.Errorf("%s: %s, %v, want %s", tc.field, got, err, tc.want)
		}
	}
}
