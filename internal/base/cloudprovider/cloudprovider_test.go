package cloudprovider

import (
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
)

func TestFlag(t *testing.T) {
	for text, want := range map[string]bool{"external": true, "": true, "aws": false, "External": false} {
		var s Setting
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		Register(flags, &s, "")
		if err := flags.Parse([]string{"--cloud-provider=" + text}); (err == nil) != want {
			t.Errorf("--cloud-provider=%s: error %v", text, err)
		}
		if want && (s.String() != text || s.IsExternal() != (text == "external")) {
			t.Errorf("--cloud-provider=%s sets %q", text, s)
		}
	}
}

func TestIsUninitialized(t *testing.T) {
	node := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "other"}}}}
	if IsUninitialized(node) {
		t.Error("a node with another taint is uninitialized")
	}
	node.Spec.Taints = append(node.Spec.Taints, Taint())
	if !IsUninitialized(node) {
		t.Error("a node with the taint is initialized")
	}
}
